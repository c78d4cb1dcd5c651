"""Device functions that reach other ranks of a node: count stores, raise and wait for flags.

A peer's buffer is an address: values are stored into it, and then its flag is raised with release
at system scope.

A flag holds the number of the last execution (epoch) that raised it, so nothing is ever cleared:

    waves of a program   store ── s_waitcnt ──┐
                         store ── s_waitcnt ──┴─ barrier ── count parts ── raise flag := epoch
    receiver             wait until flag - epoch >= 0 (acquire), then read
"""

import triton
import triton.language as tl


@triton.jit
def stores_done(hip: tl.constexpr):
    """Wait until the stores of all warps of this program have reached its cache.

    A barrier of CUDA orders the stores of all threads before it with what follows (PTX memory
    model, cumulativity). The barrier of gfx9 only waits for LDS: a wave may still have stores under
    way when another one raises the flag, so every wave waits for its own stores first.
    """
    if hip:
        tl.inline_asm_elementwise(
            "s_waitcnt vmcnt(0)\n\tv_mov_b32 $0, $1",
            "=v,v,~{memory}",
            [tl.program_id(0)],
            dtype=tl.int32,
            is_pure=False,
            pack=1,
        )
    tl.debug_barrier()


@triton.jit
def completes(counter, parts, hip: tl.constexpr):
    """Count one more part of a slice; return whether it was the last, which then sees all parts.

    Every program releases at system scope: the caches of a GPU in several dies are written back by
    the die that stored, not by the one that raises the flag. The last part resets the counter.
    """
    stores_done(hip)
    last = tl.atomic_add(counter, 1, sem="acq_rel", scope="sys") == parts - 1
    if last:
        tl.atomic_xchg(counter, 0, sem="relaxed", scope="gpu")
    return last


@triton.jit
def raise_flag(flags, rank, index, epoch):
    """Raise flag ``index`` of ``rank`` to ``epoch``; stores that were waited for come before it."""
    flag = (tl.load(flags + rank) + 4 * index).to(tl.pointer_type(tl.int32))
    tl.atomic_xchg(flag, epoch, sem="release", scope="sys")


@triton.jit
def announce(flags, rank, num_ranks, first, epoch):
    """Signal all ranks that this one may be written to."""
    for peer in range(num_ranks):
        raise_flag(flags, peer, first + rank, epoch)


@triton.jit
def arrived(flags, count, epoch, max_polls, block: tl.constexpr):
    """Wait until ``count`` flags have reached ``epoch``; return whether they did in time.

    ``block`` is a power of two >= ``count``; ``max_polls`` is a number of polls.
    """
    lane = tl.arange(0, block)
    here = lane < count
    # Triton has no load with acquire semantics at system scope; adding zero atomically is one.
    seen = tl.atomic_add(flags + lane, 0, mask=here, sem="acquire", scope="sys")
    late = tl.sum((here & (seen - epoch < 0)).to(tl.int32), axis=0)
    polls = 0
    while (late > 0) & (polls < max_polls):
        seen = tl.atomic_add(flags + lane, 0, mask=here, sem="acquire", scope="sys")
        late = tl.sum((here & (seen - epoch < 0)).to(tl.int32), axis=0)
        polls += 1
    return late == 0
