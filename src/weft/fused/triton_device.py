"""How a kernel reaches another rank: put values, publish them, raise a flag, wait for flags.

Inside a node a peer's buffer is an address: values are stored into it, and a flag beside it is
raised once they must be seen (release at system scope). What goes to a rank on another node is
stored into an outbox in this rank's memory, and a descriptor in a queue asks a host thread to send
it: see ``torch_proxy``. The address of a peer tells which: it is 0 for a rank that has none here.
"""

import triton
import triton.language as tl

FIELDS = 3  # of a descriptor: whether it is there, the rank it goes to, the number of the slice
_FIELDS = tl.constexpr(FIELDS)


@triton.jit
def place(peers, rank, there, outbox, here):
    """Where values for ``rank`` go: ``there`` floats into its buffer, or ``here`` into ours."""
    base = tl.load(peers + rank)
    address = tl.where(base != 0, base + 4 * there, outbox + 4 * here)
    return address.to(tl.pointer_type(tl.float32))


@triton.jit
def completes(counter, parts):
    """Count one more part of a slice; whether it was the last, which then sees all of them."""
    tl.debug_barrier()  # every thread of this program has stored its values
    return tl.atomic_add(counter, 1, sem="acq_rel", scope="sys") == parts - 1


@triton.jit
def publish(peers, flags, rank, flag, queue, tail, part):
    """Let ``rank`` see a slice that is complete: raise its flag, or ask the host to send it."""
    if tl.load(peers + rank) != 0:
        raised = (tl.load(flags + rank) + 4 * flag).to(tl.pointer_type(tl.int32))
        tl.atomic_add(raised, 1, sem="release", scope="sys")
    else:
        entry = queue + tl.atomic_add(tail, 1, sem="relaxed", scope="gpu") * _FIELDS
        tl.store(entry + 1, rank)
        tl.store(entry + 2, part)
        tl.debug_barrier()
        tl.atomic_xchg(entry, 1, sem="release", scope="sys")  # the host may read it now


@triton.jit
def arrived(flag, count, patience):
    """Wait until ``flag`` has been raised ``count`` times; say whether it was in time."""
    seen = tl.atomic_add(flag, 0, sem="acquire", scope="sys")
    looks = 0
    while (seen < count) & (looks < patience):
        seen = tl.atomic_add(flag, 0, sem="acquire", scope="sys")
        looks += 1
    return seen >= count
