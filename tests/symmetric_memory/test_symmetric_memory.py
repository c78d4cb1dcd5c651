"""Programs written for torch's symmetric memory, on CPU tensors of several processes."""

import gc
import os
import resource
import signal
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed._symmetric_memory as symm_mem

from tests.hosts.ranks import on_hosts
from tests.torch.ranks import on_ranks
from tests.torch.test_faults import error_of
from weft.errors import UsageError
from weft.torch.symmetric_memory.symmetric_memory_backend import allocator

pytestmark = [pytest.mark.torch, pytest.mark.multiprocess, pytest.mark.timeout(120)]

COUNT = 5000
CPU: Any = "cpu"  # torch takes names as well as devices


def shared(tensor: torch.Tensor) -> Any:
    """Share a tensor with the ranks of the default group."""
    group: Any = dist.group.WORLD
    return symm_mem.rendezvous(tensor, group)


def one_shot_all_reduce():
    """As a kernel of one shot does it: share, wait, sum the buffers of all ranks."""
    rank, size = dist.get_rank(), dist.get_world_size()
    t = symm_mem.empty(COUNT, dtype=torch.float32, device=CPU)
    hdl = shared(t)
    found = []
    for step in range(50):
        t.fill_(rank + step)
        hdl.barrier(channel=0)
        total = sum(hdl.get_buffer(peer, (COUNT,), torch.float32) for peer in range(size))
        hdl.barrier(channel=1)
        found.append(bool((total == size * step + sum(range(size))).all()))
    assert (hdl.rank, hdl.world_size) == (rank, size)
    assert hdl.buffer_ptrs[rank] == t.data_ptr()
    assert hdl.buffer_size == 4 * COUNT
    return all(found)


@pytest.mark.parametrize("num_ranks", [2, 4])
def test_buffers_of_all_ranks_are_read_between_barriers(num_ranks):
    assert on_ranks(one_shot_all_reduce, num_ranks) == [True] * num_ranks


def signals():
    """Pass a token around; a view has the offset that it has in its allocation."""
    rank, size = dist.get_rank(), dist.get_world_size()
    whole = symm_mem.empty((4, 8), dtype=torch.int64, device=CPU)
    hdl = shared(whole[1])
    after, before = (rank + 1) % size, (rank - 1) % size
    for lap in range(20):
        if rank or lap:
            hdl.wait_signal(before, channel=2)
        hdl.get_remote_tensor(after, (8,), torch.int64).fill_(lap * size + rank)
        hdl.put_signal(after, channel=2)
    if rank == 0:
        hdl.wait_signal(before, channel=2)
    dist.barrier()
    pads = hdl.get_signal_pad(rank)
    return [hdl.offset, whole[1].tolist(), whole[0].sum().item(), int(pads.to(torch.int64).sum())]


def test_signals_order_what_is_written_to_a_peer():
    first, second, third = on_ranks(signals, 3)
    assert [found[0] for found in (first, second, third)] == [64] * 3
    assert (first[1], second[1], third[1]) == ([59] * 8, [57] * 8, [58] * 8)
    assert [found[2:] for found in (first, second, third)] == [[0, 0]] * 3


def two_threads():
    """Two threads of each rank at barriers of two channels."""
    rank = dist.get_rank()
    t = symm_mem.empty(2, dtype=torch.int64, device=CPU)
    t.zero_()
    hdl = shared(t)
    wrong = []

    def work(channel):
        mine, theirs = (hdl.get_buffer(r, (2,), torch.int64) for r in (rank, 1 - rank))
        for step in range(1, 2000):
            mine[channel] = step
            hdl.barrier(channel=2 * channel)
            if int(theirs[channel]) != step:
                wrong.append((channel, step))
            hdl.barrier(channel=2 * channel + 1)

    threads = [threading.Thread(target=work, args=(channel,)) for channel in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return wrong


def test_channels_keep_threads_apart():
    assert on_ranks(two_threads, 2) == [[], []]


def used_again():
    """Memory ends with its tensor; a second rendezvous needs no other rank."""
    before = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(20):
        t = symm_mem.empty(1 << 20, dtype=torch.uint8, device=CPU)
        hdl = shared(t)
        if dist.get_rank() == 0:
            again = shared(t)
            assert again.buffer_ptrs == hdl.buffer_ptrs
        kept = hdl.get_buffer(1 - dist.get_rank(), (1,), torch.uint8)
        t[0] = 7
        hdl.barrier()
        assert kept.item() == 7
    view = t[5:]
    del t, hdl, kept
    gc.collect()
    return [len(list(Path("/proc/self/fd").iterdir())) - before, symm_mem.is_symm_mem_tensor(view)]


def test_memory_ends_with_its_tensor():
    assert on_ranks(used_again, 2) == [[1, True]] * 2  # the view keeps one


def died():
    t = symm_mem.empty(8, device=CPU)
    hdl = shared(t)
    hdl.barrier()
    if dist.get_rank() == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    name, text = error_of(hdl.barrier)
    assert name == "RankDiedError"
    assert "rank 1 died (pid " in text
    raise SystemExit(3)


def test_a_rank_that_died_is_named():
    with pytest.raises(Exception, match=r"rank 1 died|exit code 3|ended with 3"):
        on_ranks(died, 2)


def late():
    t = symm_mem.empty(8, device=CPU)
    hdl = shared(t)
    found = error_of(lambda: hdl.wait_signal(1 - dist.get_rank(), timeout_ms=100))
    dist.barrier()
    return found


def test_a_signal_that_does_not_come_raises_after_the_timeout():
    for rank, (name, text) in enumerate(on_ranks(late, 2)):
        assert name == "RunTimeoutError"
        assert f"rank {rank} timed out after 0.1 s at wait_signal on channel 0" in text


def other_sizes():
    t = symm_mem.empty(8 + dist.get_rank(), device=CPU)
    return error_of(lambda: shared(t))


def test_other_sizes_are_refused():
    for name, text in on_ranks(other_sizes, 2):
        assert name == "DisagreeError"
        assert "36" in text
        assert "32" in text


def other_hosts():
    t = symm_mem.empty(8, device=CPU)
    try:
        shared(t)
    except UsageError as error:
        return str(error)
    return ""


def test_ranks_of_other_hosts_are_refused():
    first, second = on_hosts(other_hosts, "ab")
    assert "different hosts (a and b)" in first
    assert "different hosts (b and a)" in second


def cannot_map():
    """Rank 1 has no addresses left for the memory of rank 0, of which no page is touched."""
    t = symm_mem.empty(1 << 30, dtype=torch.uint8, device=CPU)
    limits = resource.getrlimit(resource.RLIMIT_AS)
    if dist.get_rank() == 1:
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        limit = pages * resource.getpagesize() + t.nbytes // 2
        resource.setrlimit(resource.RLIMIT_AS, (limit, limits[1]))
    try:
        return error_of(lambda: shared(t))
    finally:
        resource.setrlimit(resource.RLIMIT_AS, limits)


def test_a_rank_that_cannot_map_a_peer_is_an_error_on_all_ranks():
    for name, text in on_ranks(cannot_map, 2):
        assert name == "RunError"
        assert "cannot map the memory of rank 0" in text
        assert "Cannot allocate memory" in text


def in_two_groups(path):
    """Destroy the group and make one with the ranks in the opposite order; keep the tensor."""
    t = symm_mem.empty(8, device=CPU)
    shared(t)
    first, size = dist.get_rank(), dist.get_world_size()
    dist.destroy_process_group()
    store = dist.FileStore(path, size)  # type: ignore[attr-defined]
    dist.init_process_group("weft", store=store, rank=size - 1 - first, world_size=size)
    t.fill_(dist.get_rank())
    hdl = shared(t)
    hdl.barrier()
    found = [float(hdl.get_buffer(peer, (8,), torch.float32)[0]) for peer in range(size)]
    hdl.barrier(channel=1)
    return found


def test_a_later_group_of_the_same_name_maps_its_own_ranks(tmp_path):
    assert on_ranks(in_two_groups, 2, str(tmp_path / "store")) == [[0.0, 1.0]] * 2


def refused():
    t = symm_mem.empty(8, device=CPU)
    hdl = shared(t)
    texts = []
    for act in (
        lambda: shared(torch.zeros(8)),
        lambda: hdl.get_buffer(1, (8,), torch.float32),
        lambda: hdl.get_buffer(0, (9,), torch.float32),
        lambda: hdl.barrier(channel=-1),
        lambda: hdl.put_signal(0, channel=1 << 20),
        lambda: hdl.get_buffer(0, (-1,), torch.float32),
        lambda: hdl.get_signal_pad(0, storage_offset=10**9),
        lambda: shared(t[1:]).get_remote_tensor(0, (1,), torch.float64),
    ):
        try:
            act()
            texts.append("")
        except UsageError as error:
            texts.append(str(error))
    return texts


def test_wrong_arguments_are_refused():
    ordinary, rank, long, _, channel, negative, pad, misaligned = on_ranks(refused, 1)[0]
    assert "ordinary memory" in ordinary
    assert "from 0 to 0 (got 1)" in rank
    assert "needs 36 bytes (expected at most 32)" in long
    assert "channel: must be from 0 to" in channel
    assert "must be >= 0 (got (-1,) at 0)" in negative
    assert "needs 4000000000 bytes" in pad
    assert "begins 4 bytes into its memory" in misaligned


def test_an_empty_tensor_and_persistent_allocations():
    assert symm_mem.empty(0, device=CPU).shape == (0,)
    assert symm_mem.get_backend(CPU) == "WEFT"
    assert not symm_mem.is_symm_mem_tensor(torch.zeros(3))
    kept = allocator.empty((4,), (1,), torch.float32, alloc_id=7)
    with pytest.raises(UsageError, match="allocation 7 is still in use"):
        allocator.empty((4,), (1,), torch.float32, alloc_id=7)
    del kept
    assert allocator.empty((4,), (1,), torch.float32, alloc_id=7).sum() == 0
