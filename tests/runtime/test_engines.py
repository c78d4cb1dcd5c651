"""Engines and worker stand where they are told to, and go on while Python computes."""

from __future__ import annotations

import os
import sys
import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.runtime.leftovers import nothing_left
from weft.collectives import collective
from weft.errors import RunError, UsageError
from weft.runtime import Engines, prepare, spawn
from weft.runtime.engine_threads import POLICIES, allowed_cores, engines_from, engines_of
from weft.runtime.process_settings import own_core

LAST = max(allowed_cores())
MASK = sum(1 << core for core in allowed_cores())
DEADLINE = 60.0  # seconds that a rank looks for bytes before it gives up

core_sets = st.frozensets(st.integers(0, 70), min_size=1, max_size=9)


@given(
    number=st.none() | st.integers(1, 64),
    cores=core_sets,
    nice=st.none() | st.integers(-20, 19),
    policy=st.none() | st.sampled_from(sorted(POLICIES)),
    caller=st.none() | st.just("rest") | core_sets,
)
def test_what_is_written_is_read_again(number, cores, nice, policy, caller):
    engines = Engines(number, cores, nice, policy, caller)
    assert Engines.parse(str(engines)) == engines


def test_any_collection_of_cores_will_do():
    assert Engines(cores=[1, 0, 1]) == Engines(cores={0, 1})


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("nmber=2", "unknown setting 'nmber'"),
        ("number", "number: "),
        ("number=two", "number: expected an integer .got 'two'."),
        ("number=0", "number: expected an integer from 1 to 64 .got 0."),
        ("cores=a", "cores: expected cores .got 'a'."),
        (
            "cores=0-99999999999999",
            "cores: expected an integer from 0 to 65536 .got 99999999999999.",
        ),
        ("cores=3-1", "cores: must not be empty"),
        ("nice=20", "nice: expected an integer from -20 to 19 .got 20."),
        ("policy=fifo", "policy: unknown scheduling policy 'fifo'"),
        ("caller=rest", "caller: 'rest' needs cores"),
    ],
)
def test_an_invalid_setting_is_named_with_its_variable(text, says):
    with pytest.raises(UsageError, match=f"WEFT_ENGINES: {says}"):
        engines_from({"WEFT_ENGINES": text})


def test_a_core_that_does_not_exist_is_refused_before_anything_starts():
    with pytest.raises(UsageError, match="core 4000 does not exist") as caught:
        spawn(be_placed, 2, engines=Engines(cores={4000}))
    assert "This machine has cores 0" in caught.value.hint


def test_engines_that_take_every_core_leave_none_to_the_caller():
    with pytest.raises(UsageError, match="leave no core for the caller"):
        Engines(cores=allowed_cores(), caller="rest").require_possible()


def test_missing_engines_of_a_rank_are_an_error():
    with pytest.raises(UsageError, match=r"no entry for rank 1 .got 1 entries."):
        engines_of(1, [Engines()])


@pytest.mark.skipif(os.geteuid() == 0, reason="root may make threads urgent")
def test_urgency_without_permission_is_refused():
    with pytest.raises(UsageError, match="nice: permission denied for -20"):
        Engines(nice=-20).require_possible()


def test_a_policy_that_a_sandbox_forbids_is_refused(monkeypatch):
    def forbid(*_):
        raise PermissionError

    monkeypatch.setattr(os, "sched_setscheduler", forbid)
    with pytest.raises(UsageError, match="policy: permission denied for 'batch'"):
        Engines(policy="batch").require_possible()


def places(world):
    """Cores, nice level and policy of every thread of this rank but the caller's."""
    return [
        (os.sched_getaffinity(t), os.getpriority(os.PRIO_PROCESS, t), os.sched_getscheduler(t))
        for t in world.threads()
    ]


def copied(world):
    """Run a schedule with three copy queues a rank; count the wrong bytes."""
    n = world.num_ranks
    with prepare(collective("all_gather", "dma", num_ranks=n, nbytes=64 * n), world) as ready:
        data = ready.buffer("data")
        data[64 * world.rank : 64 * (world.rank + 1)] = world.rank + 1
        world.barrier()
        for _ in range(20):
            ready.run()
        return int(np.count_nonzero(data != np.repeat(np.arange(1, n + 1), 64)))


def be_placed(world):
    before = os.sched_getaffinity(0)
    told = world.engines
    wrong = copied(world)
    first, mine = places(world), os.sched_getaffinity(0)
    world.set_engines(Engines())
    again = copied(world)
    after = os.sched_getaffinity(0)
    return told, wrong + again, first, mine, after, before


@pytest.mark.multiprocess
@pytest.mark.timeout(120)
@pytest.mark.parametrize("number", [None, 1, 2])
def test_threads_run_on_their_cores_and_copy_all_bytes(number):
    told = Engines(number, {LAST}, 7, "batch", {LAST})
    with nothing_left():
        answers = spawn(be_placed, 4, engines=told)
    for rank, (heard, wrong, threads, mine, after, before) in enumerate(answers):
        assert heard == told
        assert wrong == 0
        assert threads == [({LAST}, 7, os.SCHED_BATCH)] * (1 + (number or 3))
        assert mine == {LAST} == before
        assert after == (own_core(rank, [MASK] * 4, {}) or allowed_cores())


def be_of_own_mind(world):
    return str(world.engines), [nice for _, nice, _ in places(world)]


@pytest.mark.multiprocess
@pytest.mark.timeout(120)
def test_each_rank_may_have_its_own_engines(monkeypatch):
    with nothing_left():
        assert spawn(be_of_own_mind, 2, engines=[Engines(nice=3), Engines(nice=5)]) == [
            ("nice=3", [3]),
            ("nice=5", [5]),
        ]
        monkeypatch.setenv("WEFT_ENGINES", "nice=9")
        assert spawn(be_of_own_mind, 1) == [("nice=9", [9])]


def be_refused(world):
    world.set_engines(Engines(nice=4))
    try:
        world.set_engines(Engines(cores={4000}))
    except UsageError:
        return str(world.engines), [nice for _, nice, _ in places(world)]
    return None


@pytest.mark.multiprocess
@pytest.mark.timeout(120)
def test_a_refused_change_leaves_all_as_it_was():
    assert spawn(be_refused, 1) == [("nice=4", [4])]


def until(arrived):
    """Look, without giving Python's lock away, until the bytes are there."""
    sys.setswitchinterval(1000.0)
    deadline = time.monotonic() + DEADLINE
    while not arrived():
        if time.monotonic() > deadline:
            raise RunError("the bytes did not come while Python computed.")


def be_overlapped(world, computes):
    x, out = world.empty(50_000, "uint8"), world.empty(100_000, "uint8")
    x[:] = world.rank + 1
    a = np.ones((200, 200), np.float32)
    work = world.all_gather(out, x, async_op=True)

    def arrived():
        if computes:
            a @ a  # without the lock
        return out[0] == 1 and out[49_999] == 1 and out[50_000] == 2 and out[-1] == 2

    until(arrived)
    work.wait()
    return int(np.count_nonzero(out != np.repeat([1, 2], 50_000)))


@pytest.mark.multiprocess
@pytest.mark.timeout(180)
@pytest.mark.parametrize("computes", [False, True])
@pytest.mark.parametrize("engines", [None, Engines(cores={LAST}, nice=1), Engines(policy="idle")])
def test_a_call_goes_on_while_python_computes(computes, engines):
    """The lock of Python is held, or given away by a product of matrices: never for weft."""
    with nothing_left():
        assert spawn(be_overlapped, 2, computes, engines=engines) == [0, 0]


def be_grouped(world):
    group = world.group([0, 1])
    return str(group.engines), [nice for _, nice, _ in places(group)]


@pytest.mark.multiprocess
@pytest.mark.timeout(120)
def test_a_group_inherits_the_engines_of_its_world():
    assert spawn(be_grouped, 2, engines=Engines(nice=6)) == [("nice=6", [6])] * 2


def be_moved_between(world):
    """Threads are renewed after a call was handed over and before it is waited for."""
    x = np.full(1000, world.rank + 1.0)
    for _ in range(3):
        world.all_reduce(x, async_op=True).wait()
    work = world.all_reduce(x, async_op=True)
    for engines in (Engines(nice=3), Engines(), Engines(nice=5)):
        world.set_engines(engines)
        work.wait(DEADLINE)
        later = world.all_reduce(x, async_op=True)
        later.wait(DEADLINE)
    return float(x[0])


@pytest.mark.multiprocess
@pytest.mark.timeout(120)
def test_a_work_outlives_the_threads_that_carry_it_out():
    """Every call doubles the sum of two ranks: seven of them after the first."""
    with nothing_left():
        assert spawn(be_moved_between, 2, timeout=DEADLINE) == [3.0 * 2**6] * 2


@given(cores=st.integers(1, 9), ranks=st.integers(1, 40))
def test_ranks_are_spread_evenly_or_not_at_all(cores, ranks):
    masks = [(1 << cores) - 1] * ranks
    places = [own_core(rank, masks, {}) for rank in range(ranks)]
    if cores > 1 and ranks > cores and ranks % cores == 0:
        assert places == [frozenset({rank % cores}) for rank in range(ranks)]
    else:
        assert places == [None] * ranks


def test_a_launcher_or_a_user_that_places_ranks_is_left_alone():
    assert own_core(0, [0b01, 0b10, 0b01, 0b10], {}) is None
    assert own_core(0, [0b11] * 4, {"WEFT_PLACE": "system"}) is None
    with pytest.raises(UsageError, match="WEFT_PLACE: unknown value 'core'"):
        own_core(0, [0b11] * 4, {"WEFT_PLACE": "core"})


def be_spread(world):
    inside = os.sched_getaffinity(0)
    world.close()
    return inside, os.sched_getaffinity(0)


@pytest.mark.multiprocess
@pytest.mark.timeout(120)
@pytest.mark.parametrize("place", ["cores", "system"])
def test_ranks_that_share_cores_have_one_each_while_their_world_lasts(monkeypatch, place):
    monkeypatch.setenv("WEFT_PLACE", place)
    num_ranks = 2 * len(allowed_cores())
    for rank, (inside, after) in enumerate(spawn(be_spread, num_ranks)):
        own = own_core(rank, [MASK] * num_ranks) if place == "cores" else None
        assert inside == (own or allowed_cores())
        assert after == allowed_cores()
