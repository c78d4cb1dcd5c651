"""Device functions that reach other ranks: store values, publish them, set and wait for flags.

Inside a node a peer's buffer is an address: values are stored into it, and then its flag is set
with release at system scope. Data for another node is stored into an outbox in this rank's memory,
and a descriptor in a queue asks a host thread to send it (see ``torch_proxy``). A peer address of 0
means that the peer is not reachable by stores.
"""

import triton
import triton.language as tl

FIELDS = 3  # of a descriptor: valid, destination rank, slice number
_FIELDS = tl.constexpr(FIELDS)


@triton.jit
def place(peers, rank, there, outbox, here):
    """Return where to store values for ``rank``: in its buffer, or in our outbox."""
    base = tl.load(peers + rank)
    address = tl.where(base != 0, base + 4 * there, outbox + 4 * here)
    return address.to(tl.pointer_type(tl.float32))


@triton.jit
def completes(counter, parts):
    """Count one more part of a slice; return whether it was the last, which then sees all parts."""
    tl.debug_barrier()  # every thread of this program has stored its values
    return tl.atomic_add(counter, 1, sem="acq_rel", scope="sys") == parts - 1


@triton.jit
def publish(peers, flags, rank, flag, queue, tail, part):
    """Publish a complete slice to ``rank``: set its flag, or ask the host to send it."""
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
    """Wait until ``flag`` has reached ``count``; return whether it did within ``patience``."""
    seen = tl.atomic_add(flag, 0, sem="acquire", scope="sys")
    looks = 0
    while (seen < count) & (looks < patience):
        seen = tl.atomic_add(flag, 0, sem="acquire", scope="sys")
        looks += 1
    return seen >= count
