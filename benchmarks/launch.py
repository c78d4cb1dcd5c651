"""Starts weft and its peers: weft and Gloo as child processes, an MPI by its launcher."""

import secrets
import sys
import tempfile
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from importlib.util import find_spec
from pathlib import Path

import weft
from benchmarks import environments
from benchmarks.environments import MPIS
from weft.errors import UnknownNameError, nearest
from weft.local_runs.parent_death import leashed
from weft.local_runs.rank_team import TORCH_BACKENDS, Start, Team, rank_starts, torch_backend

SHARED_MEMORY_PEERS = ("deepspeed", "vllm", "oneccl")  # of tensor parallelism on cores
PEERS = ("gloo", *MPIS)
COLLECTIVE_PEERS = (*PEERS, *SHARED_MEMORY_PEERS)
# What a peer has, if not everything: collectives, and dtypes.
_KINDS = {"deepspeed": ("all_reduce",), "vllm": ("all_reduce", "all_gather")}
_DTYPES = dict.fromkeys(MPIS, ("float32",))
POOLERS = ("fbgemm", "torchrec")  # which look embeddings up, in environments of their own
# Launchers pin nothing. OpenMPI binds by default and spins; asked to, it gives its core away.
_LAUNCHERS = {
    "openmpi": (
        *("mpirun", "--allow-run-as-root", "--oversubscribe", "--bind-to", "none"),
        *("--mca", "mpi_yield_when_idle", "1"),
    ),
    "mpich": ("mpiexec", "-launcher", "fork", "-bind-to", "none"),
}
# Run by the Python of an environment that has no weft, with the folders of this one's added.
_RANK = (
    "import runpy, sys; module, *added = sys.argv.pop(1).split(':'); sys.path += added; "
    "runpy.run_module(module, run_name='__main__')"
)


def require_known(names: Iterable[str], known: Collection[str] = PEERS, what: str = "peer") -> None:
    """Raise for a name of an option that a benchmark does not know, by default of a peer."""
    for name in names:
        if name not in known:
            raise UnknownNameError(f"unknown {what} {name!r}", nearest(name, known))


def has_collective(peer: str, kind: str, dtype: str) -> bool:
    """Return whether a peer has a collective for a dtype."""
    return kind in _KINDS.get(peer, (kind,)) and dtype in _DTYPES.get(peer, (dtype,))


@contextmanager
def started(names: Sequence[str], num_ranks: int, *, pin: bool) -> Iterator[dict[str, Team]]:
    """Start weft and peers of that many ranks by name; all are stopped on exit.

    ``pin`` keeps the calling thread of rank r on core r, for weft and peers alike.
    """
    with ExitStack() as stack:
        teams = {name: stack.enter_context(closing(_team(name, num_ranks))) for name in names}
        for team in teams.values() if pin else ():
            team.ask("pin", "")
        yield teams


def _team(name: str, num_ranks: int) -> Team:
    if name in MPIS:
        return Team(name, num_ranks, [_mpi(name, num_ranks)])
    if name == "oneccl":
        return Team(name, num_ranks, [_oneccl(num_ranks)])
    if name in SHARED_MEMORY_PEERS:
        home = home_of(name)
        words = [*rank_words(home, "benchmarks.torch_shm_rank"), name]
        # DeepSpeed takes LOCAL_SIZE for the number of ranks of this host.
        environment = {"LOCAL_SIZE": str(num_ranks)}
        if name == "deepspeed":
            environment |= environments.deepspeed_variables(home)
        return Team(name, num_ranks, rank_starts(words, num_ranks, environment))
    if name in POOLERS:
        words = rank_words(home_of(name), f"benchmarks.torch_{name}_rank")
        return Team(name, num_ranks, rank_starts(words, num_ranks))
    module = ["torch_rank", torch_backend(name)] if name in TORCH_BACKENDS else ["weft_rank"]
    words = [sys.executable, "-m", f"benchmarks.{module[0]}", *module[1:]]
    return Team(name, num_ranks, rank_starts(words, num_ranks))


def _mpi(name: str, num_ranks: int) -> Start:
    """Return the launcher's words; its ranks look for this package last, after their own."""
    home = home_of(name)
    program, *options = _LAUNCHERS[name]
    words = [str(home / "bin" / program), *options, "-n", str(num_ranks)]
    return Start(leashed([*words, *rank_words(home)]), {})


def _oneccl(num_ranks: int) -> Start:
    home = home_of("oneccl")
    words = [str(home / "bin" / "mpiexec.hydra"), "-launcher", "fork", "-n", str(num_ranks)]
    words += [*rank_words(home, "benchmarks.oneccl_rank"), str(environments.oneccl_shim(home))]
    words += [str(Path(tempfile.gettempdir()) / f"weft-oneccl-{secrets.token_hex(8)}")]
    environment = {
        "CCL_ATL_TRANSPORT": "mpi",
        "I_MPI_FABRICS": "shm",
        "I_MPI_ROOT": str(home),
        "I_MPI_PIN": "0",
        "CCL_WORKER_OFFLOAD": "0",  # as everybody here: the calling thread works, on its own core
        "CCL_ROOT": str(home),
        "LD_LIBRARY_PATH": str(home / "lib"),
    }
    return Start(leashed(words), environment)


def home_of(name: str) -> Path:
    """Return the folder of a peer's environment."""
    return environments.environment(name, environments.root(), notice)


def rank_words(home: Path, module: str = "benchmarks.mpi_rank") -> list[str]:
    """Return the words that run a module by the Python of a peer's environment.

    It finds weft there, and torch where a peer needs it.
    """
    torch = find_spec("torch")
    paths = [str(Path(torch.origin).parents[1])] if torch and torch.origin else []
    added = ":".join(
        [module, *map(str, (Path(__file__).parents[1], Path(weft.__file__).parents[1])), *paths]
    )
    return [str(home / "bin" / "python"), "-c", _RANK, added]


def notice(text: str) -> None:
    """Print a line of progress where results do not go."""
    print(text, file=sys.stderr)
