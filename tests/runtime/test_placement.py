"""Who shares a core with whom, and whom a yield reaches."""

from __future__ import annotations

import numpy as np
import pytest

from tests.runtime.left import nothing_left
from weft.runtime import spawn
from weft.runtime.placement import neighbours, scheduled_with

TWO = 0b11


@pytest.mark.parametrize(
    ("masks", "groups", "want"),
    [
        ([TWO] * 4, "abcd", [[2], [3], [0], [1]]),
        ([TWO] * 4, "aaaa", [[]] * 4),
        ([TWO] * 4, "abab", [[]] * 4),  # those of one core are in one group
        ([TWO] * 2, "ab", [[]] * 2),  # nobody takes turns
        ([TWO] * 3, "abc", [[1, 2], [0, 2], [0, 1]]),  # any of them may be in the way
        ([1, 2, 1, 2], "abcd", [[1, 2, 3], [0, 2, 3], [0, 1, 3], [0, 1, 2]]),  # placed by others
    ],
)
def test_neighbours_share_a_core_but_no_group(masks, groups, want):
    assert [neighbours(rank, masks, groups, {}) for rank in range(len(masks))] == want


def test_a_group_is_told_by_session_and_container(tmp_path):
    for pid, session in ((1, 7), (2, 7), (3, 8)):
        (tmp_path / str(pid)).mkdir()
        (tmp_path / str(pid) / "autogroup").write_text(f"/autogroup-{session} nice {pid}\n")
        (tmp_path / str(pid) / "cgroup").write_text("0::/here\n")
    enabled = tmp_path / "sys/kernel/sched_autogroup_enabled"
    enabled.parent.mkdir(parents=True)
    enabled.write_text("1\n")
    names = [scheduled_with(pid, tmp_path) for pid in (1, 2, 3)]
    assert names[0] == names[1] != names[2]
    enabled.write_text("0\n")
    assert scheduled_with(1, tmp_path) == scheduled_with(3, tmp_path)
    assert scheduled_with(4, tmp_path).split() == []


def exchange_from_sessions(world, rounds):
    """Ranks that take yields for useless, as those of different sessions do, wait often."""
    cores = world.num_ranks // 2
    everyone = range(world.num_ranks)
    mates = [r for r in everyone if r != world.rank and r % cores == world.rank % cores]
    world.member.set_neighbours(mates)
    out, x = np.zeros(64 * world.num_ranks, np.float32), np.zeros(64, np.float32)
    for turn in range(rounds):
        x[:] = world.rank + turn
        world.all_gather(out, x)
        assert (out.reshape(world.num_ranks, -1)[:, 0] == turn + np.arange(world.num_ranks)).all()
    work = world.all_reduce(x, async_op=True)
    work.wait()
    return float(x[0])


@pytest.mark.multiprocess
@pytest.mark.timeout(60)
def test_ranks_that_take_turns_by_sleeping_get_on():
    with nothing_left():
        found = spawn(exchange_from_sessions, 4, 200, timeout=40)
    assert found == [199.0 * 4 + 6] * 4
