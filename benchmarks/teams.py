"""How each contestant is started: weft and Gloo as processes of ours, an MPI by its launcher."""

import sys
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from importlib.util import find_spec
from pathlib import Path

import weft
from benchmarks import environments
from benchmarks.environments import MPIS
from weft.errors import UnknownNameError, nearest
from weft.local_runs.parent_death import leashed
from weft.local_runs.rank_team import Start, Team
from weft.local_runs.team_starts import TORCH_BACKENDS, rank_starts, torch_backend

PEERS = ("gloo", *MPIS)
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


def home_of(name: str) -> Path:
    """Return the folder of a peer's environment."""
    return environments.environment(name, environments.root(), _notice)


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


def _notice(text: str) -> None:
    print(text, file=sys.stderr)
