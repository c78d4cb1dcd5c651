"""Starts teams of torch.distributed ranks on this machine, each rank a process."""

import secrets
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from importlib.util import find_spec

from weft.errors import RunError
from weft.local_runs.parent_death import leashed
from weft.local_runs.rank_team import Start, Team
from weft.runtime.env_rendezvous import free_port

TORCH_BACKENDS = {"dist": "weft", "gloo": "gloo"}  # the torch.distributed backend of a team


@contextmanager
def started_torch_teams(num_ranks: int) -> Iterator[dict[str, Team]]:
    """Start a team per backend of torch.distributed, by name; all are stopped afterwards."""
    with ExitStack() as stack:
        teams = {}
        for name in TORCH_BACKENDS:
            words = [
                sys.executable,
                "-m",
                "weft.local_runs.torch_planned_rank",
                torch_backend(name),
            ]
            team = Team(name, num_ranks, rank_starts(words, num_ranks))
            teams[name] = stack.enter_context(closing(team))
        yield teams


def rank_starts(
    words: Sequence[str], num_ranks: int, environment: Mapping[str, str] | None = None
) -> list[Start]:
    """Return the start of every rank as a process, with additional environment variables."""
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


def torch_backend(name: str) -> str:
    """Return the torch.distributed backend of a team."""
    if find_spec("torch") is None:
        raise RunError(f"{name} needs torch.", "Run pip install 'weft[torch]'.")
    return TORCH_BACKENDS[name]
