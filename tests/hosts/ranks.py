"""Start ranks on hosts that are only told apart by name: all is real but the distance."""

import os
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from tests.torch.ranks import on_ranks

CONNECTED_BY = {"GLOO_SOCKET_IFNAME": "lo"}


def on_hosts(function: Callable[..., Any], hosts: Sequence[str], *args: Any) -> list[Any]:
    """Call ``function(*args)`` on ranks of a group, rank r on the host ``hosts[r]``."""
    return on_ranks(function, len(hosts), *args, prepare=(stand_on, tuple(hosts)))


def stand_on(rank: int, hosts: Sequence[str]) -> None:
    """Put this rank on its host."""
    os.environ.update(CONNECTED_BY, WEFT_HOST=hosts[rank])


def few(splits: dict[str, tuple[str, ...]], quick: str) -> list[Any]:
    """Return the ways to spread ranks over hosts as parameters; all but one are slow."""
    return [
        pytest.param(hosts, id=name, marks=() if name == quick else pytest.mark.slow)
        for name, hosts in splits.items()
    ]
