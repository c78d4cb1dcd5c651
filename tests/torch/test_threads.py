"""Several threads of a rank that use torch.distributed at once."""

import contextlib
import itertools
import threading

import pytest
import torch
import torch.distributed as dist

from tests.runtime.test_threads import in_threads
from tests.torch.ranks import on_ranks
from weft.errors import DisagreeError, RunError
from weft.torch.hosts.serial_executor import SerialExecutor

pytestmark = [pytest.mark.torch, pytest.mark.multiprocess, pytest.mark.timeout(120)]


def side_by_side(count):
    """Wrong results of threads with a group or a tag each."""
    groups = [dist.new_group([0, 1]) for _ in range(2)]
    peer = 1 - dist.get_rank()
    wrong = [0] * 5

    def reduces(number):
        for i in range(count):
            x = torch.full((1 + i % 50,), float(dist.get_rank() + i + 100 * number))
            work = dist.all_reduce(x, group=groups[number], async_op=i % 2 == 0)
            if work is not None:
                work.wait()
            wrong[number] += not (x == 2.0 * (i + 100 * number) + 1).all()

    def messages(tag):
        for i in range(count):
            out = torch.full((8, 4000)[i % 2 : i % 2 + 1], float(1000 * tag + i))
            x = torch.zeros_like(out)
            sent = dist.isend(out, peer, tag=tag)
            dist.recv(x, peer, tag=tag)
            assert sent is not None
            sent.wait()
            wrong[2 + tag] += not (x == out).all()

    acts = [lambda number=number: reduces(number) for number in range(2)]
    acts += [lambda tag=tag: messages(tag) for tag in range(3)]
    in_threads(*acts)
    return wrong


def test_groups_and_messages_of_threads_do_not_mix():
    assert on_ranks(side_by_side, 2, 200) == [[0] * 5] * 2


def one_group():
    """What threads are told that reduce in one group at once, until one is refused."""
    told = []

    def reduces(size):
        x = torch.ones(size)
        try:
            for _ in itertools.count():
                dist.all_reduce(x)
        except RunError as error:
            told.append((isinstance(error, DisagreeError), str(error)))

    in_threads(lambda: reduces(8), lambda: reduces(8))
    return told


def test_threads_that_reduce_in_one_group_at_once_are_refused():
    for told in on_ranks(one_group, 2):
        assert len(told) == 2
        assert all(is_disagreement for is_disagreement, _ in told)


def test_calls_between_hosts_are_of_one_thread_at_a_time():
    jobs, entered, go_on = SerialExecutor("held"), threading.Event(), threading.Event()
    done = []

    def hold():
        entered.set()
        go_on.wait()
        done.append("first")

    first = threading.Thread(target=lambda: jobs.run(hold, async_op=False))
    first.start()
    entered.wait()
    try:
        for async_op in (False, True):
            with pytest.raises(DisagreeError, match="need a group each"):
                jobs.run(lambda: done.append("second"), async_op=async_op)
    finally:
        go_on.set()
        first.join()
    jobs.run(lambda: done.append("later"), async_op=False)
    jobs.close()
    assert done == ["first", "later"]


@contextlib.contextmanager
def no_thread_left():
    """Make every new thread of Python fail: its stack would exceed the address space."""
    before = threading.stack_size(1 << 47)
    try:
        yield
    finally:
        threading.stack_size(before)


def without_threads():
    """Messages, a future and the end of a group on a rank whose threads cannot start."""
    group, peer = dist.new_group([0, 1]), 1 - dist.get_rank()
    x = torch.zeros(100_000)
    dist.all_reduce(x, group=group)  # prepares it, which needs both ranks
    with no_thread_left():
        received = dist.irecv(x, peer, group=group)
        sent = dist.isend(torch.full_like(x, peer), peer, group=group)
        assert sent is not None
        assert received is not None
        sent.wait()
        received.wait()
        if dist.get_rank() == 0:  # the other rank does not come before it has been told
            work = dist.all_reduce(x, group=group, async_op=True)
            with pytest.raises(RuntimeError, match="can't start new thread"):
                work.get_future()
            dist.barrier()
            work.wait()
        else:
            dist.barrier()
            dist.all_reduce(x, group=group)
    dist.destroy_process_group(group)
    return float(x[0])


def test_a_rank_without_threads_exchanges_messages_and_leaves():
    assert on_ranks(without_threads, 2) == [1.0, 1.0]


def test_a_call_between_hosts_whose_thread_cannot_start_leaves_nothing_to_wait_for():
    jobs, done = SerialExecutor("refused"), []
    with no_thread_left(), pytest.raises(RuntimeError, match="can't start new thread"):
        jobs.run(lambda: done.append(0), async_op=True)
    jobs.drain()
    jobs.run(lambda: done.append(1), async_op=False)
    jobs.close()
    assert done == [1]


def futures_at_once():
    """Ask for futures in eight threads before the other rank comes; return the threads it took."""
    group, found = dist.new_group([0, 1]), 0
    xs = [torch.ones(1000) for _ in range(8)]
    dist.all_reduce(xs[0], group=group)  # prepares it, which needs both ranks
    if dist.get_rank() == 0:
        works = [dist.all_reduce(x, group=group, async_op=True) for x in xs]
        in_threads(*(work.get_future for work in works))
        found = [thread.name for thread in threading.enumerate()].count("weft-futures")
        dist.barrier()
        torch.futures.wait_all([work.get_future() for work in works])
    else:
        dist.barrier()
        for x in xs:
            dist.all_reduce(x, group=group)
    dist.destroy_process_group(group)
    return found


def test_one_thread_completes_the_futures_that_threads_ask_for_at_once():
    assert on_ranks(futures_at_once, 2) == [1, 0]
