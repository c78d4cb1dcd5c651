"""Persistent kernels that send results to their ranks as they are computed, for both vendors.

A program takes work items in turn. Items for other ranks come first and go to all of them in turn,
so that every link is used at any time; own items come last. A slice is the set of items that are
published together; the program that completes it raises the receiver's flag of that slice. Flags
hold epochs (see ``triton_device``), which a launch reads from device memory, so that a captured
graph can be replayed. Flags of a rank: ``[slice, sender]``, then one per sender that says that the
sender may be written to.
"""

import triton
import triton.language as tl

from weft.fused.triton_device import announce, arrived, completes, raise_flag, stores_done

TABLE_FIELDS = 7  # addresses of rows, indices, offsets, weights (0: none); rows, dim, column
TILE_FIELDS = 8  # target, first row, rows, matrix, row at the target, slice, tiles of it, -
_TABLE_FIELDS, _TILE_FIELDS = tl.constexpr(TABLE_FIELDS), tl.constexpr(TILE_FIELDS)


@triton.jit
def _pointer(address, element: tl.constexpr):
    return tl.multiple_of(address.to(tl.pointer_type(element)), 16)


@triton.jit
def _target(item, rank, num_ranks, remote):
    """Return the rank of an item and its number there: all peers in turn, the own rank last."""
    others = tl.maximum(num_ranks - 1, 1)
    target = tl.where(item < remote, (rank + 1 + item % others) % num_ranks, rank)
    return target, tl.where(item < remote, item // others, item - remote)


@triton.jit
def _pooled(
    table,  # descriptor
    bag,
    inside,
    bags: tl.constexpr,
    unroll: tl.constexpr,
    block: tl.constexpr,
    vector: tl.constexpr,
    element: tl.constexpr,
    exact: tl.constexpr,
    mean: tl.constexpr,
    weighted: tl.constexpr,
):
    """Return the pooled rows of some bags, and 1 + the position of an index out of range, or 0."""
    rows = _pointer(tl.load(table), element)
    indices = tl.load(table + 1).to(tl.pointer_type(tl.int64))
    offsets = tl.load(table + 2).to(tl.pointer_type(tl.int64))
    factors = tl.load(table + 3).to(tl.pointer_type(tl.float32))
    limit = tl.load(table + 4)
    dim = tl.multiple_of(tl.load(table + 5), vector)
    start = tl.load(offsets + bag, mask=inside, other=0)
    end = tl.load(offsets + bag + 1, mask=inside, other=0)
    lane = tl.arange(0, block)
    total = tl.zeros((bags, block), tl.float32)
    wrong = tl.zeros((bags,), tl.int64)
    for step in range(0, tl.max(end - start, axis=0), unroll):
        # All indices are loaded before the first row, and bags that have ended load row 0 instead
        # of branching: loads that wait for nothing are under way together.
        found = ()
        live = ()
        for ahead in tl.static_range(unroll):
            at = start + step + ahead
            asked = at < end
            row = tl.load(indices + at, mask=asked, other=0)
            good = asked & (row >= 0) & (row < limit)
            wrong = tl.maximum(wrong, tl.where(asked & (good == 0), at + 1, 0))
            found = found + (tl.where(good, row, 0),)  # type: ignore[assignment] # noqa: RUF005
            live = live + (good,)  # type: ignore[assignment] # noqa: RUF005
        for ahead in tl.static_range(unroll):
            source = rows + found[ahead][:, None] * dim + lane[None, :]
            if exact:
                value = tl.load(source)
            else:
                value = tl.load(source, mask=(lane < dim)[None, :], other=0.0)
            value = tl.where(live[ahead][:, None], value.to(tl.float32), 0.0)
            if weighted:
                factor = tl.load(factors + start + step + ahead, mask=live[ahead], other=0.0)
                value *= factor[:, None]
            total += value
    if mean:
        total /= tl.maximum(end - start, 1).to(tl.float32)[:, None]
    return total, tl.max(wrong, axis=0)


@triton.jit
def embedding_all_to_all_kernel(
    tables,  # descriptors of this rank's tables, TABLE_FIELDS each
    samples,  # first sample of each rank, and the total at the end
    outputs,  # address of each rank's output
    flags,  # address of each rank's flags
    own_flags,
    counters,  # per rank and slice, zeros
    epochs,  # the number of this execution
    trouble,  # [1 + position of an index out of range, 1 on a timeout]
    rank,
    num_ranks,
    num_tables,  # of this rank
    most_samples,  # of any rank
    width,  # columns of an output
    slice_samples,  # a multiple of ``bags``
    max_polls,
    bags: tl.constexpr,  # samples of an item, whose rows are under way together
    unroll: tl.constexpr,  # rows of each of these bags that are under way together
    block: tl.constexpr,  # the next power of two of the widest table
    vector: tl.constexpr,  # elements that divide dims, columns and widths
    peers: tl.constexpr,  # the next power of two of the number of ranks
    element: tl.constexpr,  # of tables
    exact: tl.constexpr,  # every table has ``block`` columns
    mean: tl.constexpr,
    weighted: tl.constexpr,
    num_programs: tl.constexpr,
    hip: tl.constexpr,
):
    """Pool the rows of each bag directly into the output of the rank that owns the sample.

    ``out[sample, column]`` of float32 on each rank. A slice is ``slice_samples`` samples of one
    rank, for all local tables.
    """
    epoch = tl.load(epochs)
    slices = (most_samples + slice_samples - 1) // slice_samples
    ready = slices * num_ranks
    if tl.program_id(0) == 0:
        announce(flags, rank, num_ranks, ready, epoch)
    chunks = (most_samples + bags - 1) // bags
    per_rank = chunks * num_tables
    remote = (num_ranks - 1) * per_rank
    if not arrived(own_flags + ready, num_ranks, epoch, max_polls, peers):
        tl.store(trouble + 1, 1)
    else:
        for item in range(tl.program_id(0), num_ranks * per_rank, num_programs):
            target, number = _target(item, rank, num_ranks, remote)
            table = tables + number % num_tables * _TABLE_FIELDS
            chunk = number // num_tables
            first = tl.load(samples + target)
            sample = chunk * bags + tl.arange(0, bags)  # of the target
            inside = first + sample < tl.load(samples + target + 1)
            total, position = _pooled(
                table,
                first + sample,
                inside,
                bags,
                unroll,
                block,
                vector,
                element,
                exact,
                mean,
                weighted,
            )
            lane = tl.arange(0, block)
            dim = tl.multiple_of(tl.load(table + 5), vector)
            column = tl.multiple_of(tl.load(table + 6), vector)
            out = _pointer(tl.load(outputs + target), tl.float32)
            place = tl.cast(sample, tl.int64) * width + column
            tl.store(
                out + (tl.multiple_of(place, vector)[:, None] + lane[None, :]),
                total,
                mask=inside[:, None] & (lane < dim)[None, :],
            )
            if position > 0:
                tl.store(trouble, position)
            part = chunk * bags // slice_samples
            left = tl.minimum(slice_samples, most_samples - part * slice_samples)
            members = (left + bags - 1) // bags * num_tables
            if completes(counters + target * slices + part, members, hip):
                raise_flag(flags, target, part * num_ranks + rank, epoch)


@triton.jit
def gemv_all_reduce_kernel(
    matrix,  # features x columns
    vectors,  # tokens x columns
    slots,  # address of each rank's receive buffer: [sender, row of its part]
    results,  # address of each rank's result: tokens x features
    flags,  # address of each rank's flags: [block, sender] of summands, then of sums
    own_slots,
    own_flags,
    epochs,
    trouble,  # [-, 1 on a timeout]
    rank,
    num_ranks,
    num_rows,  # tokens * features
    features,
    part_rows,  # rows that a rank reduces
    columns,
    max_polls,
    block_rows: tl.constexpr,
    block_columns: tl.constexpr,
    peers: tl.constexpr,
    num_programs: tl.constexpr,
    hip: tl.constexpr,
):
    """Multiply, send summands to the rank that reduces them, reduce, and write sums to all.

    A rank that sees the sums of a block knows that its summands were read, and a rank sends
    summands only after it used the last result: no buffer is overwritten before it was read. All
    programs must be resident, as in any persistent kernel, because they wait for other ranks.
    """
    epoch = tl.load(epochs)
    lane = tl.arange(0, block_rows)
    blocks = (part_rows + block_rows - 1) // block_rows
    remote = (num_ranks - 1) * blocks
    for item in range(tl.program_id(0), num_ranks * blocks, num_programs):
        target, number = _target(item, rank, num_ranks, remote)
        inside = number * block_rows + lane  # of the target's part
        row = tl.cast(target, tl.int64) * part_rows + inside
        known = (inside < part_rows) & (row < num_rows)
        weights = matrix + (row % features)[:, None] * columns
        factors = vectors + (row // features)[:, None] * columns
        total = tl.zeros((block_rows, block_columns), tl.float32)
        for start in range(0, columns, block_columns):
            column = start + tl.arange(0, block_columns)
            mask = known[:, None] & (column < columns)[None, :]
            a = tl.load(weights + column[None, :], mask=mask, other=0.0).to(tl.float32)
            x = tl.load(factors + column[None, :], mask=mask, other=0.0).to(tl.float32)
            total += a * x
        there = _pointer(tl.load(slots + target), tl.float32)
        place = tl.cast(rank, tl.int64) * part_rows + inside
        tl.store(there + place, tl.sum(total, axis=1), mask=known)
        stores_done(hip)
        raise_flag(flags, target, number * num_ranks + rank, epoch)
    for number in range(tl.program_id(0), blocks, num_programs):
        if not arrived(own_flags + number * num_ranks, num_ranks, epoch, max_polls, peers):
            tl.store(trouble + 1, 1)
        else:
            inside = number * block_rows + lane
            row = tl.cast(rank, tl.int64) * part_rows + inside
            known = (inside < part_rows) & (row < num_rows)
            total = tl.zeros((block_rows,), tl.float32)
            for sender in range(num_ranks):  # in rank order, so that all runs give the same bits
                place = tl.cast(sender, tl.int64) * part_rows + inside
                total += tl.load(own_slots + place, mask=known, other=0.0)
            for distance in range(num_ranks):
                peer = (rank + 1 + distance) % num_ranks
                out = _pointer(tl.load(results + peer), tl.float32)
                tl.store(out + row, total, mask=known)
            stores_done(hip)
            for distance in range(num_ranks):
                peer = (rank + 1 + distance) % num_ranks
                raise_flag(flags, peer, (blocks + number) * num_ranks + rank, epoch)


@triton.jit
def gemm_all_to_all_kernel(
    a,  # rows x inner
    b,  # matrices x inner x columns
    tiles,  # descriptors of bands of rows, TILE_FIELDS each, all peers in turn
    outputs,
    flags,
    own_flags,
    counters,  # per rank and slice
    epochs,
    trouble,
    rank,
    num_ranks,
    num_tiles,
    columns,
    inner,
    stride_matrix,
    stride_inner,
    stride_column,
    slices,
    max_polls,
    block_m: tl.constexpr,
    block_n: tl.constexpr,
    block_k: tl.constexpr,
    vector: tl.constexpr,
    peers: tl.constexpr,
    element: tl.constexpr,  # of the output
    num_programs: tl.constexpr,
    hip: tl.constexpr,
):
    """Multiply bands of rows by their matrix, and store each tile where its rows belong.

    A band is at most ``block_m`` rows with one target and one matrix (an expert).
    """
    epoch = tl.load(epochs)
    ready = slices * num_ranks
    if tl.program_id(0) == 0:
        announce(flags, rank, num_ranks, ready, epoch)
    across = (columns + block_n - 1) // block_n
    width = tl.multiple_of(tl.cast(columns, tl.int64), vector)
    if not arrived(own_flags + ready, num_ranks, epoch, max_polls, peers):
        tl.store(trouble + 1, 1)
    else:
        for item in range(tl.program_id(0), num_tiles * across, num_programs):
            tile = tiles + item // across * _TILE_FIELDS
            target = tl.load(tile).to(tl.int32)
            row = tl.load(tile + 1)
            rows = tl.load(tile + 2)
            m = tl.arange(0, block_m)
            n = item % across * block_n + tl.arange(0, block_n)
            left = a + (row + m)[:, None] * inner
            right = b + tl.load(tile + 3) * stride_matrix
            total = tl.zeros((block_m, block_n), tl.float32)
            for start in range(0, inner, block_k):
                k = start + tl.arange(0, block_k)
                near = (m[:, None] < rows) & (k[None, :] < inner)
                across_k = (k[:, None] < inner) & (n[None, :] < columns)
                x = tl.load(left + k[None, :], near, other=0.0)
                y = tl.load(
                    right
                    + tl.cast(k, tl.int64)[:, None] * stride_inner
                    + n[None, :] * stride_column,
                    across_k,
                    other=0.0,
                )
                total = tl.dot(x, y, total)
            out = _pointer(tl.load(outputs + target), element)
            place = tl.load(tile + 4) * width
            known = (m[:, None] < rows) & (n[None, :] < columns)
            to = out + (place + m[:, None] * width + n[None, :])
            tl.store(to, total.to(element), mask=known)
            part = tl.load(tile + 5).to(tl.int32)
            members = tl.load(tile + 6).to(tl.int32) * across
            if completes(counters + target * slices + part, members, hip):
                raise_flag(flags, target, part * num_ranks + rank, epoch)


@triton.jit
def wait_kernel(flags, epochs, trouble, count, max_polls, block: tl.constexpr):
    """Wait until ``count`` flags have reached the epoch; a timeout is reported in ``trouble``."""
    if not arrived(flags, count, tl.load(epochs), max_polls, block):
        tl.store(trouble + 1, 1)
