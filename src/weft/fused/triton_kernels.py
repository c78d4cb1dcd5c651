"""Persistent kernels that send results to their ranks as they are computed, for both vendors.

A program takes work items in turn. Items for other ranks come first, those for the next rank before
those for the one after it, so that not all ranks write to the same one. A slice is the set of items
that are published together; the program that completes it sets the receiver's flag. A rank reads
received data once its flags allow it (``wait_kernel``, or inside the kernel).
"""

import triton
import triton.language as tl

from weft.fused.triton_device import arrived, completes, place, publish


@triton.jit
def embedding_all_to_all_kernel(
    weights,  # rows of all tables of this rank, concatenated
    first_rows,  # first row of each table
    indices,
    offsets,  # of bag (table, sample), table by table, and the total at the end
    peers,
    flags,
    counters,  # per slice, zeros
    outbox,
    queue,
    tail,
    wrong,  # set to 1 + the position of an out-of-range index
    rank,
    num_ranks,
    num_tables,  # of this rank
    first_table,  # index of its first table among those of all ranks
    all_tables,
    samples,  # of each rank
    slice_samples,
    dim: tl.constexpr,
    block: tl.constexpr,  # the next power of two
    num_programs: tl.constexpr,
):
    """Sum the rows of each bag directly into the output of the rank that owns the sample.

    ``out[sample, table, :]`` of float32 on each rank. A slice is ``slice_samples`` samples of one
    rank, for all local tables; its flag is that of this rank at the receiver.
    """
    lane = tl.arange(0, block)
    per_rank = samples * num_tables
    for item in range(tl.program_id(0), num_ranks * per_rank, num_programs):
        target = (rank + 1 + item // per_rank) % num_ranks
        sample = item % per_rank // num_tables
        table = item % num_tables
        bag = table * (num_ranks * samples) + target * samples + sample
        first = tl.load(first_rows + table)
        last = tl.load(first_rows + table + 1)
        total = tl.zeros((block,), tl.float32)
        for at in range(tl.load(offsets + bag), tl.load(offsets + bag + 1)):
            row = tl.load(indices + at)
            if (row >= 0) & (row < last - first):
                source = weights + (first + row) * dim + lane
                total += tl.load(source, mask=lane < dim, other=0.0)
            else:
                tl.store(wrong, at + 1)
        there = ((sample * all_tables + first_table + table) * dim).to(tl.int64)
        here = ((target * samples + sample) * num_tables + table).to(tl.int64) * dim
        out = place(peers, target, there, outbox, here)
        tl.store(out + lane, total, mask=lane < dim)
        part = sample // slice_samples
        slices = (samples + slice_samples - 1) // slice_samples
        members = tl.minimum(slice_samples, samples - part * slice_samples) * num_tables
        if completes(counters + target * slices + part, members):
            publish(peers, flags, target, rank, queue, tail, part)


@triton.jit
def gemv_all_reduce_kernel(
    matrix,  # local rows x columns
    vector,
    slots,  # addresses of each rank's receive buffer: summands of its part, by sender
    results,  # addresses of each rank's result
    flags,
    counters,
    late,  # set to 1 on a timeout
    rank,
    num_ranks,
    part_rows,  # rows of the result that a rank reduces, in blocks
    columns,
    patience,
    block_rows: tl.constexpr,
    block_columns: tl.constexpr,
    num_programs: tl.constexpr,
):
    """Multiply, send summands to the rank that reduces them, reduce, and write sums to all.

    All programs must be resident, as in any persistent kernel, because they wait for other ranks.
    """
    lane = tl.arange(0, block_rows)
    blocks = part_rows // block_rows
    for item in range(tl.program_id(0), num_ranks * blocks, num_programs):
        target = (rank + 1 + item // blocks) % num_ranks
        row = item % blocks * block_rows + lane
        total = tl.zeros((block_rows,), tl.float32)
        for start in range(0, columns, block_columns):
            column = start + tl.arange(0, block_columns)
            here = column < columns
            x = tl.load(vector + column, mask=here, other=0.0).to(tl.float32)
            whole = target * part_rows + row
            a = tl.load(
                matrix + whole[:, None] * columns + column[None, :], mask=here[None, :], other=0.0
            )
            total += tl.sum(a.to(tl.float32) * x[None, :], axis=1)
        there = tl.load(slots + target).to(tl.pointer_type(tl.float32))
        tl.store(there + rank * part_rows + row, total)
        if completes(counters + target, blocks):
            raised = tl.load(flags + target).to(tl.pointer_type(tl.int32))
            tl.atomic_add(raised, 1, sem="release", scope="sys")
    mine = tl.load(slots + rank).to(tl.pointer_type(tl.float32))
    ready = tl.load(flags + rank).to(tl.pointer_type(tl.int32))
    for item in range(tl.program_id(0), blocks, num_programs):
        if not arrived(ready, num_ranks, patience):
            tl.store(late, 1)
        row = item * block_rows + lane
        total = tl.zeros((block_rows,), tl.float32)
        for sender in range(num_ranks):  # in rank order, so that all runs give the same bits
            total += tl.load(mine + sender * part_rows + row)
        for distance in range(num_ranks):
            target = (rank + 1 + distance) % num_ranks
            there = tl.load(results + target).to(tl.pointer_type(tl.float32))
            tl.store(there + rank * part_rows + row, total)
        if completes(counters + num_ranks, blocks):
            for target in range(num_ranks):
                raised = (tl.load(flags + target) + 4).to(tl.pointer_type(tl.int32))
                tl.atomic_add(raised, 1, sem="release", scope="sys")


@triton.jit
def gemm_all_to_all_kernel(
    a,  # rows x inner: the rows of rank 0, then those of rank 1, ..
    b,  # inner x columns
    peers,
    flags,
    counters,
    outbox,
    queue,
    tail,
    rank,
    num_ranks,
    rows,  # of each rank
    columns,
    inner,
    block_m: tl.constexpr,
    block_n: tl.constexpr,
    block_k: tl.constexpr,
    num_programs: tl.constexpr,
):
    """Multiply, and store each tile where its rows belong: ``out[sender, row, :]`` of float32.

    A slice is a band of ``block_m`` rows; its flag is that of this rank at the receiver.
    """
    down = (rows + block_m - 1) // block_m
    across = (columns + block_n - 1) // block_n
    for item in range(tl.program_id(0), num_ranks * down * across, num_programs):
        target = (rank + 1 + item // (down * across)) % num_ranks
        band = item % (down * across) // across
        m = band * block_m + tl.arange(0, block_m)
        n = item % across * block_n + tl.arange(0, block_n)
        total = tl.zeros((block_m, block_n), tl.float32)
        for start in range(0, inner, block_k):
            k = start + tl.arange(0, block_k)
            left = (m[:, None] < rows) & (k[None, :] < inner)
            right = (k[:, None] < inner) & (n[None, :] < columns)
            x = tl.load(a + (target * rows + m[:, None]) * inner + k[None, :], left, other=0.0)
            y = tl.load(b + k[:, None] * columns + n[None, :], right, other=0.0)
            total = tl.dot(x, y, total)
        block = (rows * columns).to(tl.int64)
        out = place(peers, target, rank * block, outbox, target * block)
        known = (m[:, None] < rows) & (n[None, :] < columns)
        tl.store(out + m[:, None] * columns + n[None, :], total, mask=known)
        if completes(counters + target * down + band, across):
            publish(peers, flags, target, rank, queue, tail, band)


@triton.jit
def wait_kernel(flags, counts, late, patience):
    """Wait until flag i has reached ``counts[i]``, for every i of the grid.

    A flag that times out is reported in ``late``.
    """
    flag = tl.program_id(0)
    if not arrived(flags + flag, tl.load(counts + flag), patience):
        tl.store(late, flag + 1)
