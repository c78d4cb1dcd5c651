"""Ranks forked by a process that has one thread and no world, so that modules are imported once."""

from __future__ import annotations

import os
import sys
import tempfile
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path

from weft._core import die_with


def forked(run: Callable[[], object]) -> int:
    """Run something in a process that ends with this one; 0 is the code of success."""
    parent = os.getpid()
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        if die_with(parent):
            run()
            code = 0
    except BaseException:  # noqa: BLE001 - its output is the test's
        traceback.print_exc()
    finally:
        os._exit(code)


def answers_of(num_ranks: int, rank_main: Callable[[int, Path], str]) -> list[str]:
    """Run ``rank_main(rank, folder)`` in a process for each rank; return their answers."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)

        def answer(rank: int) -> None:
            (folder / f"{rank}").write_text(rank_main(rank, folder))

        pids = [forked(partial(answer, rank)) for rank in range(num_ranks)]
        codes = [os.waitpid(pid, 0)[1] for pid in pids]
        if any(codes):
            sys.exit(f"ranks ended with {codes}")
        return [(folder / f"{rank}").read_text() for rank in range(num_ranks)]
