"""Several threads of a rank: messages and groups side by side, and what is refused."""

from __future__ import annotations

import itertools
import os
import signal
import threading
import time

import numpy as np
import pytest

from tests.runtime.leftovers import nothing_left
from weft.errors import DisagreeError, RunError, UsageError
from weft.runtime import spawn

pytestmark = [pytest.mark.multiprocess, pytest.mark.timeout(120)]

SHORT, LONG = 1900, 8000  # bytes: as many as a slot holds nearly, and more than one holds


@pytest.fixture(autouse=True)
def _nothing_left():
    with nothing_left():
        yield


def in_threads(*acts):
    """Carry out each act in a thread of its own; raise what the first of them raised."""
    errors = []

    def guarded(act):
        try:
            act()
        except BaseException as error:  # noqa: BLE001 - it is raised below
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(act,)) for act in acts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


def send_by_tags(world, num_threads, count, nbytes):
    """How many messages were not those that were sent: a tag for each thread."""
    wrong = [0] * num_threads

    def act(tag):
        x = np.zeros(nbytes // 4, np.int32)
        for i in range(count):
            if world.rank == 0:
                x[:] = tag * count + i
                world.send(x, 1, tag)
            else:
                world.recv(x, 0, tag)
                wrong[tag] += not (x == tag * count + i).all()

    in_threads(*(lambda tag=tag: act(tag) for tag in range(num_threads)))
    return sum(wrong)


@pytest.mark.parametrize(("num_threads", "nbytes"), [(3, SHORT), (6, 64), (3, LONG)])
def test_threads_that_send_to_one_rank_lose_and_mix_nothing(num_threads, nbytes):
    assert spawn(send_by_tags, 2, num_threads, 8000, nbytes, timeout=60)[1] == 0


def send_with_one_tag(world, count, nbytes):
    """The numbers that each receiving thread got, in its order."""
    got: list[list[int]] = [[], [], []]

    def act(number):
        x = np.zeros(nbytes // 4, np.int32)
        for i in range(count):
            if world.rank == 0:
                x[:] = number * count + i
                world.send(x, 1)
            else:
                world.recv(x, 0)
                got[number].append(int(x[0]) if (x == x[0]).all() else -1)

    in_threads(*(lambda number=number: act(number) for number in range(3)))
    return got


@pytest.mark.parametrize("nbytes", [64, SHORT, LONG])
def test_threads_that_share_a_tag_get_each_message_once(nbytes):
    count = 3000
    got = spawn(send_with_one_tag, 2, count, nbytes, timeout=60)[1]
    assert sorted(itertools.chain(*got)) == list(range(3 * count))
    for numbers in got:  # those of one sender come in its order
        senders = [[each for each in numbers if each // count == sender] for sender in range(3)]
        assert senders == [sorted(each) for each in senders]


def send_by_many(world, num_threads, nbytes):
    """How many were right of messages that are received in another order than they were sent."""
    x, right = np.zeros(nbytes // 8, np.int64), []
    if world.rank == 0:
        sends = [
            lambda tag=tag: world.send(np.full(nbytes // 8, tag), 1, tag)
            for tag in range(num_threads)
        ]
        in_threads(*sends)
        return 0
    for tag in reversed(range(num_threads)):
        world.recv(x, 0, tag)
        right.append(bool((x == tag).all()))
    return sum(right)


@pytest.mark.parametrize("nbytes", [64, LONG])
def test_more_threads_than_slots_may_send_what_is_received_last_first(nbytes):
    assert spawn(send_by_many, 2, 20, nbytes, timeout=30)[1] == 20


def send_more_than_slots(world, num):
    """As above by one thread, which waits for the last message first."""
    x, right = np.zeros(LONG // 8, np.int64), []
    if world.rank == 0:
        works = [
            world.send(np.full(LONG // 8, tag), 1, tag, async_op=True) for tag in range(num - 1)
        ]
        world.send(np.full(LONG // 8, num - 1), 1, num - 1)
        for work in works:
            work.wait()
        return 0
    for tag in range(num):
        world.recv(x, 0, tag)
        right.append(bool((x == tag).all()))
    return sum(right)


def test_a_message_has_room_when_those_before_it_were_received():
    assert spawn(send_more_than_slots, 2, 9, timeout=30)[1] == 9


def exchange_ahead(world, staged, count, nbytes):
    """Receives that were asked for ahead, waited for by other threads in any order."""
    world.stages = (
        staged  # long messages go in parts, as where no process may read another's memory
    )
    wrong = [0] * 3

    def act(number):
        peer, tag = 1 - world.rank, number % 2  # two of the threads share a tag
        for i in range(count):
            value = 10 * i + tag
            out = np.full(nbytes // 4, value, np.int32)
            x = np.zeros(nbytes // 4, np.int32)
            received = world.recv(x, peer, tag, async_op=True)
            sent = world.send(out, peer, tag, async_op=True)
            other = [threading.Thread(target=each.wait) for each in (sent, received)]
            for thread in other:
                thread.start()
            received.wait()
            sent.wait()
            for thread in other:
                thread.join()
            wrong[number] += not (x == x[0]).all() or int(x[0]) % 10 != tag
            if number == 1:  # alone with its tag: also in order
                wrong[number] += int(x[0]) != value

    in_threads(*(lambda number=number: act(number) for number in range(3)))
    return sum(wrong)


@pytest.mark.parametrize("staged", [False, True])
def test_what_one_thread_asked_for_others_may_wait_for(staged):
    assert spawn(exchange_ahead, 2, staged, 300, LONG, timeout=60) == [0, 0]


def collectives_in_groups(world, count):
    """Count wrong results of collectives in one group per thread, while the world sends."""
    groups = [world.group([0, 1]) for _ in range(2)]
    wrong = [0] * 3

    def reduce_in(number):
        group = groups[number]
        for i in range(count):
            nbytes = (64, 4096, 100_000)[i % 3]
            x = np.full(nbytes // 4, group.rank + i + 100 * number, np.float32)
            work = group.all_reduce(x, async_op=i % 2 == 0)
            if work is not None:
                work.wait()
            wrong[number] += not (x == 2 * (i + 100 * number) + 1).all()
            out = np.zeros(32, np.float32)
            group.all_gather(out, np.full(16, group.rank + i, np.float32))
            wrong[number] += not (out == np.repeat([i, i + 1], 16)).all()

    def messages():
        x = np.zeros(100, np.int64)
        for i in range(count):
            if world.rank == 0:
                world.send(np.full(100, i), 1, 3)
            else:
                world.recv(x, 0, 3)
                wrong[2] += not (x == i).all()

    in_threads(lambda: reduce_in(0), lambda: reduce_in(1), messages)
    world.all_reduce(np.ones(4))
    return sum(wrong)


def test_groups_and_messages_go_side_by_side_in_threads():
    assert spawn(collectives_in_groups, 2, 200, timeout=60) == [0, 0]


def reduce_and_send(world, count):
    """Count wrong results of one thread that reduces and one that sends, at once."""
    peer, wrong = 1 - world.rank, [0, 0]

    def reductions():
        x = np.empty(64, np.int64)
        for i in range(count):
            x[:] = i + world.rank
            world.all_reduce(x)
            wrong[0] += int(x[0]) != 2 * i + 1 or int(x[-1]) != 2 * i + 1

    def messages():
        out, x = np.empty(16, np.int64), np.empty(16, np.int64)
        for i in range(count):
            out[:] = 2 * i + world.rank
            if i % 2 == world.rank:
                world.send(out, peer, 1)
                world.recv(x, peer, 2)
            else:
                world.recv(x, peer, 1)
                world.send(out, peer, 2)
            wrong[1] += not (x == 2 * i + peer).all()

    in_threads(reductions, messages)
    return wrong


def test_a_rank_reduces_and_sends_at_once():
    assert spawn(reduce_and_send, 2, 5000, timeout=60) == [[0, 0], [0, 0]]


@pytest.mark.slow
@pytest.mark.timeout(3600)  # of the thread sanitizer, on two busy cores
def test_a_million_operations_of_two_threads_of_each_rank():
    # A reduction, a send and a receive in each of as many rounds, on two ranks.
    assert spawn(reduce_and_send, 2, 170_000, timeout=300) == [[0, 0], [0, 0]]


def messages_next_to_collectives(world, count):
    """One thread makes the collectives of a world, others send and receive in it."""
    wrong = [0, 0]

    def collectives():
        for i in range(count):
            x = np.full(4 + i % 40, i, np.float64)  # many sizes: each is prepared at its first use
            world.all_reduce(x)
            wrong[0] += not (x == 2 * i).all()

    def messages():
        peer, x = 1 - world.rank, np.zeros(50)
        for i in range(count):
            work = world.send(np.full(50, float(i)), peer, async_op=True)
            world.recv(x, peer)
            work.wait()
            wrong[1] += not (x == i).all()

    in_threads(collectives, messages)
    return sum(wrong)


def test_messages_go_next_to_the_collectives_of_their_world():
    assert spawn(messages_next_to_collectives, 2, 400, timeout=60) == [0, 0]


CALLS = {
    "first": lambda world, x: world.all_reduce(x),
    "again": lambda world, x: world.all_gather(np.zeros(2 * x.size, x.dtype), x),
    "async": lambda world, x: world.all_reduce(x, async_op=True),
    "reduce": lambda world, x: world.reduce(x),
    "barrier": lambda world, _: world.barrier(),
    "empty": lambda world, _: world.empty(10),
    "group": lambda world, _: world.group([0, 1]),
    "threads": lambda world, _: world.threads(),
}


def second_thread(world, name, tmp_path):
    """What a second thread, the one that waits, and the other rank are told."""
    x = np.ones(4, np.float32)
    world.all_gather(np.zeros(8, np.float32), x)
    world.all_gather(np.zeros(8, np.float32), x)  # the second time from the dispatch cache
    world.barrier()
    if world.rank == 1:
        (tmp_path / "refused").read_text()  # a pipe: until the other rank was refused
        with pytest.raises(RunError) as failure:
            world.all_gather(np.zeros(8, np.float32), x)
        return type(failure.value).__name__, str(failure.value)
    told = []

    def wait():
        try:
            world.all_gather(np.zeros(8, np.float32), x)
        except RunError as error:
            told.append(str(error))

    waiting = threading.Thread(target=wait)
    waiting.start()
    while len(set(world.member.last_call(0))) == 1:  # until it is in its call
        os.sched_yield()
    with pytest.raises(DisagreeError, match=r"another of its threads is in call \d+, all_gather"):
        CALLS[name](world, x)
    (tmp_path / "refused").write_text("")
    waiting.join()
    return "", told[0]


@pytest.mark.parametrize("name", sorted(CALLS))
def test_a_second_thread_in_a_collective_of_one_world_is_refused(name, tmp_path):
    os.mkfifo(tmp_path / "refused")
    (_, waiting), (kind, other) = spawn(second_thread, 2, name, tmp_path, timeout=60)
    assert kind == "DisagreeError"
    for text in (waiting, other):
        assert "rank 0 calls" in text
        assert "need a group each" in text


def close_while_receiving(world, tmp_path):
    """How a thread that receives ends when its world is closed."""
    if world.rank == 1:
        (tmp_path / "closed").read_text()
        return "", 0.0
    told, begun = [], threading.Event()

    def receive():
        begun.set()
        try:
            world.recv(np.zeros(4), 1)
        except RunError as error:
            told.append(str(error))

    waiting = threading.Thread(target=receive)
    waiting.start()
    begun.wait()
    begin = time.monotonic()
    world.close()
    waiting.join()
    (tmp_path / "closed").write_text("")
    return told[0], time.monotonic() - begin


def test_closing_a_world_ends_the_receives_of_other_threads(tmp_path):
    os.mkfifo(tmp_path / "closed")
    text, seconds = spawn(close_while_receiving, 2, tmp_path, timeout=60)[0]
    assert "closed" in text
    assert seconds < 30  # half of the timeout: it was not waited for


def fork_meanwhile(world, pipe):
    """How calls of a child end that is forked in a call of another thread; then the world's."""
    x = np.ones(4, np.float32)
    world.all_gather(np.zeros(8, np.float32), x)
    if world.rank == 1:
        pipe.read_text()
        world.all_gather(np.zeros(8, np.float32), x)
        world.all_reduce(x)
        return float(x[0])
    waiting = threading.Thread(target=lambda: world.all_gather(np.zeros(8, np.float32), x))
    waiting.start()
    while len(set(world.member.last_call(0))) == 1:  # until it is in its call
        os.sched_yield()
    child = os.fork()
    if child == 0:
        texts = [
            error_text(lambda: world.all_reduce(x)),
            error_text(lambda: world.empty(4)),
            error_text(lambda: world.send(x, 1)),
        ]
        os._exit(sum("forked" in text for text in texts))
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    pipe.write_text("")
    waiting.join()
    world.all_reduce(x)
    return status, float(x[0])


def error_text(act):
    try:
        act()
    except RunError as error:
        return str(error)
    return ""


def test_a_child_that_is_forked_in_a_call_of_another_thread_leaves_the_world_alone(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    assert spawn(fork_meanwhile, 2, tmp_path / "pipe", timeout=30) == [(3, 2.0), 2.0]


def send_in_handler(world):
    """What a signal handler is told that sends on the queue it interrupted."""
    if world.rank == 1:
        world.recv(np.zeros(4), 0, 1)
        x = np.zeros(LONG // 8)
        world.recv(x, 0)
        return bool((x == 1).all())
    found = []

    def handle(*_):
        try:
            world.send(np.ones(LONG // 8), 1)
        except UsageError as error:
            found.append(str(error))
        world.send(np.zeros(4), 1, 1)

    signal.signal(signal.SIGUSR1, handle)
    first, main = world.send(np.ones(LONG // 8), 1, async_op=True), threading.get_ident()

    def interrupt():
        while not first.queue._entered:  # until it is waited for
            os.sched_yield()
        signal.pthread_kill(main, signal.SIGUSR1)

    threading.Thread(target=interrupt).start()
    first.wait()
    return found


def test_a_signal_handler_that_would_wait_for_the_call_it_interrupted_gets_an_error():
    found, came = spawn(send_in_handler, 2, timeout=30)
    assert came
    assert len(found) == 1
    assert "signal handler" in found[0]
