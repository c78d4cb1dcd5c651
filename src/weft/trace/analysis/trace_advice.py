"""Advice: the largest avoidable losses of a step.

A loss is reported for the rank that loses most by it. Its cost is a bound: what a step would save
if the loss vanished and nothing else took its place. Usually something else does, such as a late
host or another rank, so every loss names the change of ``weft whatif`` that tells. Replayed gains
are listed before bounds.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from weft.trace.analysis.analysis_result import (
    BOUND,
    CollectiveUse,
    RankAnalysis,
    StepAdvice,
    Straggler,
    TimePart,
    counted_steps,
)
from weft.trace.analysis.idle import (
    ALLOCATING,
    LATENCY,
    LAUNCHING,
    LOADING,
    OPERATORS,
    PREPARING,
    PYTHON,
    QUEUED,
    SYNC,
    UNSEEN,
    WORKING,
    synchronises,
)
from weft.trace.analysis.kernel_table import (
    ATTENTION,
    COMMUNICATION,
    CONVOLUTION,
    COPIES,
    ELEMENTWISE,
    EMBEDDING,
    GEMM,
    NORM,
    OPTIMIZER,
    REDUCTION,
)
from weft.trace.trace_collectives import kind_of
from weft.units import format_rate, format_size, format_time

WORTH = 0.01  # fraction of a step: smaller losses are not reported
_LEAST = 0.001  # fraction of a step: smaller losses are not replayed
_SHOWN = 3
_FAR = 0.7  # fraction of the link's bandwidth: less is slow
_SEEN_IDLE = 1e-4  # seconds of idle time below which a sentence does not mention it
_BUSY = 0.8  # fraction of a step: beyond this only faster kernels help
_LISTED = 4  # families of kernels
_NO_SYNC = "no-sync"
KERNELS = "kernels"  # placeholder for advice without a change: it is listed last
_BUCKET = 25 << 20  # bytes: the default of DDP's bucket_cap_mb
_MANY, _MANY_UNSIZED = 8, 32  # collectives of a kind in a step that are worth merging
_MERGED = ("all_reduce", "all_gather", "reduce_scatter", "broadcast")  # that can go in one message
_LARGER = (
    "larger buckets: bucket_cap_mb of DDP, fully_shard of larger modules, one collective of a flat "
    "buffer instead of one per tensor"
)
_KERNEL_HOW = {
    GEMM: "lower precision (bf16, fp8), tensor cores for fp32 (TF32), sizes that are multiples of "
    "64, torch.compile(mode='max-autotune')",
    ATTENTION: "scaled_dot_product_attention with a flash kernel, shorter or packed sequences",
    CONVOLUTION: "channels_last, torch.backends.cudnn.benchmark, lower precision",
    NORM: "torch.compile fuses them with what is around them",
    ELEMENTWISE: "torch.compile fuses them: they only move memory",
    REDUCTION: "torch.compile fuses them with what is around them",
    OPTIMIZER: "a fused optimizer (fused=True), or sharding it over the ranks",
    EMBEDDING: "fused embedding bags, sharding tables over the ranks, fewer bytes per row",
    COPIES: "keep tensors where they are: avoid .contiguous(), .to() and copies from the host",
}


class Loss(NamedTuple):
    """An advice whose gain is a bound, and the index of the rank that loses most."""

    rank: int
    advice: StepAdvice


def first_of(advice: Iterable[StepAdvice]) -> tuple[StepAdvice, ...]:
    """Return the advice to show first: replayed gains, then bounds, then those with neither."""
    worth = [each for each in advice if each.share >= WORTH and each.gain > 0]
    ordered = sorted(
        worth, key=lambda each: (each.change == KERNELS, each.basis == BOUND, -each.share)
    )
    return tuple(
        replace(each, change="") if each.change == KERNELS else each for each in ordered[:_SHOWN]
    )


def losses(ranks: Sequence[RankAnalysis], late: Sequence[Straggler]) -> list[Loss]:
    """Return all losses of more than a thousandth of a step.

    A change may save more than the loss: a host that waits for its GPU is late with everything it
    launches afterwards, however short the wait is.
    """
    job = _Job(ranks, late)
    if not job.ranks:
        return []
    found = [loss for look in _LOOKS for loss in look(job)]
    longest = max(rank.seconds for rank in job.ranks)
    shared = [
        Loss(loss.rank, replace(loss.advice, share=loss.advice.gain / longest))
        for loss in found
        if longest > 0
    ]
    worth = [
        loss for loss in shared if loss.advice.share >= _LEAST or loss.advice.change == _NO_SYNC
    ]
    return [*worth, *_kernels(job, longest)]


class _Job(NamedTuple):
    """The ranks of a job, and the stragglers among them."""

    every: Sequence[RankAnalysis]
    late: Sequence[Straggler]

    @property
    def ranks(self) -> list[RankAnalysis]:
        """The ranks with GPU events."""
        return [rank for rank in self.every if rank.total.num_gpu_events]

    def most(self, loss: Callable[[RankAnalysis], float]) -> tuple[float, RankAnalysis]:
        """Return the largest loss of a step, and its rank."""
        worst = max(self.ranks, key=loss)
        return loss(worst), worst

    def where(self, rank: RankAnalysis) -> str:
        several = len(self.ranks) > 1 and rank.rank is not None
        return f" on rank {rank.rank}" if several else ""

    def loss(
        self, rank: RankAnalysis, title: str, gain: float, why: str, how: str, change: str = ""
    ) -> Loss:
        number = next(n for n, each in enumerate(self.every) if each is rank)
        return Loss(number, StepAdvice(title, gain, why, how, change=change))


def _per_step(rank: RankAnalysis, seconds: float) -> float:
    """Return the mean per step of a sum over all steps of a file."""
    return seconds / max(len(rank.steps), 1)


_BALANCE = (
    "balance the work of the ranks (batches, shards, data loading), or let late ranks launch "
    "earlier; no faster link helps"
)


def _waiting(job: _Job) -> Iterator[Loss]:
    gain, rank = job.most(lambda r: r.mean_step.exposed_waiting or 0.0)
    if len(job.ranks) > 1 and rank.basis == "measured":
        if job.late:
            title, why = late_rank(job.late, job.late[0].rank)
            yield job.loss(rank, title, gain, why, _BALANCE, "no-straggler")
        yield job.loss(
            rank,
            "Balance the work of the ranks",
            gain,
            f"{format_time(gain)} of a step{job.where(rank)} is spent waiting for other ranks",
            _BALANCE,
            "no-waiting",
        )
    else:
        yield job.loss(
            rank,
            "Record all ranks, and find out which one this rank waits for",
            gain,
            f"collectives take about {format_time(gain)} of a step longer than the links need for "
            f"their bytes ({rank.basis})",
            _BALANCE,
            "no-waiting",
        )


def late_rank(late: Sequence[Straggler], rank: int) -> tuple[str, str]:
    """Return title and reason of the advice to look at one rank."""
    title = f"Find out why rank {rank} is late"
    found = next((each for each in late if each.rank == rank), None)
    if found is None:
        return title, f"in the replayed step the others wait for rank {rank} longest"
    return title, (
        f"rank {rank} was the last in {found.num_last} of {found.num_collectives} collectives and "
        f"{found.why}"
    )


def _moving(job: _Job) -> Iterator[Loss]:
    def loss(rank: RankAnalysis) -> float:
        moving, exposed = rank.mean_step.exposed_moving, rank.mean_step.exposed
        return exposed if moving is None else moving

    gain, rank = job.most(loss)
    moving, exposed = rank.mean_step.exposed_moving, rank.mean_step.exposed
    total: dict[tuple[str, int | None], float] = defaultdict(float)
    for use in rank.collectives:
        share = 1.0 if use.moving is None else use.moving / max(use.seconds, 1e-12)
        total[use.kind, use.nbytes] += use.exposed * share
    if not total:
        return
    kind, nbytes = max(total, key=total.__getitem__)
    size = f" of {format_size(nbytes)}" if nbytes else ""
    small = any(each.kind == kind for each in _small_of(rank))
    split = (
        "what of it waits for other ranks and what moves bytes is unknown"
        if moving is None
        else f"bytes move for {format_time(moving)} of it"
    )
    yield job.loss(
        rank,
        "Hide communication behind computation",
        gain,
        f"communication is exposed for {format_time(exposed)} of a step{job.where(rank)}: the GPU "
        f"computes nothing meanwhile; most of it is {kind}{size}, and {split}",
        _LARGER
        if small
        else "start collectives earlier or in smaller pieces, or let another engine carry them: "
        "`weft whatif` prices each strategy",
        "no-communication" if moving is None else "no-moving",
    )


@dataclass(frozen=True, slots=True)
class _Small:
    """Small collectives of one kind in the mean step of a rank, and what they cost."""

    kind: str
    count: float  # per step
    nbytes: float | None  # on average
    exposed: float
    issuing: float  # idle time of the GPU while the host issued them

    @property
    def times(self) -> int:
        """How many of them make a bucket of the usual size."""
        # Without sizes, aim for as few collectives as are not called many.
        wanted = self.count / _MANY if self.nbytes is None else _BUCKET / self.nbytes
        return max(2, min(round(wanted), round(self.count)))

    @property
    def cost(self) -> float:
        """What merging would save at most."""
        return (self.exposed + self.issuing) * (1 - 1 / self.times)


def _small_of(rank: RankAnalysis) -> list[_Small]:
    """Return the kinds of which a step has many, and small ones where their sizes are known."""
    uses: dict[str, list[CollectiveUse]] = defaultdict(list)
    counted = set(counted_steps(rank.steps))
    for use in rank.collectives:
        if use.step in counted and use.kind in _MERGED:
            uses[use.kind].append(use)
    found = []
    for kind, those in uses.items():
        count = len(those) / len(counted)
        sizes = [use.nbytes for use in those if use.nbytes]
        mean = sum(sizes) / len(sizes) if len(sizes) == len(those) else None
        if count >= (_MANY_UNSIZED if mean is None else _MANY) and (mean or 0) < _BUCKET / 8:
            issuing = sum(p.seconds for p in rank.step_launching if kind_of(p.what) == kind)
            exposed = sum(use.exposed for use in those) / len(counted)
            found.append(_Small(kind, count, mean, exposed, issuing))
    return found


def _many_small(job: _Job) -> Iterator[Loss]:
    gain, rank = job.most(lambda r: max((each.cost for each in _small_of(r)), default=0.0))
    if gain <= 0:
        return
    worst = max(_small_of(rank), key=lambda each: each.cost)
    size = "of unknown size" if worst.nbytes is None else f"of {format_size(int(worst.nbytes))}"
    why = f"a step{job.where(rank)} has {worst.count:.0f} {worst.kind} {size} on average, exposed "
    why += f"for {format_time(worst.exposed)}"
    if worst.issuing > 0:
        why += f"; the GPU idles {format_time(worst.issuing)} more while the host issues them"
    title = f"Merge {worst.count:.0f} small collectives into fewer, larger ones"
    loss = job.loss(rank, title, gain, why, _LARGER, f"buckets*{worst.times}")
    if worst.nbytes is None:
        doubt = "a replay needs sizes: record with record_shapes=True"
        loss = Loss(loss.rank, replace(loss.advice, change="", doubt=doubt))
    yield loss


def _slow_links(job: _Job) -> Iterator[Loss]:
    def slow(rank: RankAnalysis) -> list[CollectiveUse]:
        return [u for u in rank.collectives if u.basis == "measured" and _is_slow(u)]

    def loss(rank: RankAnalysis) -> float:
        lost = (
            # At the predicted bandwidth it would have moved in busbw / link of the time; only the
            # exposed share of what that saves shortens the step.
            (u.moving or 0.0) * (1 - (u.busbw or 0.0) / (u.link or 1.0)) * _exposed(u)
            for u in slow(rank)
        )
        return _per_step(rank, sum(lost))

    gain, rank = job.most(loss)
    if gain <= 0:
        return
    worst = max(slow(rank), key=lambda u: (u.moving or 0.0) * _exposed(u))
    busbw, link = worst.busbw or 1.0, worst.link or 1.0
    yield job.loss(
        rank,
        "Find out why the links are slow",
        gain,
        f"{worst.kind} of {format_size(worst.nbytes or 0)} reached {format_rate(busbw)} of bus "
        f"bandwidth, predicted are {format_rate(link)}",
        "compare with nccl-tests on the same nodes; look at NCCL_DEBUG=INFO for the path it took",
        f"links*{max(link / busbw, 1.01):.2f}",
    )


def _is_slow(use: CollectiveUse) -> bool:
    return bool(use.busbw and use.link and use.busbw < _FAR * use.link)


def _exposed(use: CollectiveUse) -> float:
    return use.exposed / use.seconds if use.seconds > 0 else 0.0


def _overlap(job: _Job) -> Iterator[Loss]:
    gain, rank = job.most(lambda r: _per_step(r, sum(s.lost for s in r.slowdowns)))
    if not rank.slowdowns:
        return
    worst = max(rank.slowdowns, key=lambda s: s.lost)
    yield job.loss(
        rank,
        "Let communication take less of the GPU",
        gain,
        f"{worst.family} kernels take {worst.weighted:.2f} times as long while communication runs "
        f"({worst.num_pairs} places of a step seen with and without overlap)",
        "fewer channels (NCCL_MAX_NCHANNELS), a copy engine, or a partition of the units: see "
        "`weft c3`",
        "no-slowdown",
    )


def _host(job: _Job) -> Iterator[Loss]:
    gain, rank = job.most(lambda r: _idle(r, (WORKING, LAUNCHING, OPERATORS, PYTHON, LATENCY)))
    works = _idle(rank, (WORKING,))
    why = (
        f"the GPU idles {format_time(gain)} of a step{job.where(rank)} because its next kernel "
        f"was not launched yet; the host was meanwhile mostly in: {_names(rank.step_launching)}"
    )
    # Fewer launches do not help where the host computes between them.
    if works > 0.5 * gain:
        title = "Take host work out of the step"
        why += f"; for {format_time(works)} of it nothing is launched for over 1 ms at a time"
        how = (
            "do that work ahead of the step in workers or another thread, on the GPU, or not at "
            "all; quicker launches do not help"
        )
    else:
        title = "Let the host get ahead of the GPU"
        how = (
            "fewer and larger kernels: torch.compile, CUDA graphs (mode='reduce-overhead'), fused "
            "or foreach optimizers, a larger batch"
        )
    yield job.loss(rank, title, gain, why, how, "no-launching")


def _input(job: _Job) -> Iterator[Loss]:
    gain, rank = job.most(lambda r: _idle(r, (PREPARING, LOADING)))
    loads = _idle(rank, (LOADING,)) >= 0.5 * gain
    yield job.loss(
        rank,
        "Load data ahead of the step" if loads else "Prepare the input ahead of the step",
        gain,
        f"the GPU idles {format_time(gain)} of a step{job.where(rank)} while the host loads or "
        f"preprocesses its input; it was meanwhile mostly in: {_names(rank.step_preparing)}",
        "load and preprocess in workers (DataLoader num_workers, prefetch_factor, pin_memory=True) "
        "while the step before runs, or preprocess on the GPU",
        "no-input",
    )


def _names(parts: Sequence[TimePart]) -> str:
    named = [part.what for part in parts if not part.what.startswith("ProfilerStep#")]
    return ", ".join(named[:2]) or "Python"


def _syncs(job: _Job) -> Iterator[Loss]:
    gain, rank = job.most(lambda r: _idle(r, (SYNC,)))
    if gain <= 0 and not any(map(_waits, rank.trace.names)):  # names of all that was recorded
        return
    why = f"the host waits for its GPU{job.where(rank)}, and kernels that it launches afterwards "
    why += "start late"
    if gain >= _SEEN_IDLE:
        why += f"; the GPU idles {format_time(gain)} of a step until the host goes on"
    yield job.loss(
        rank,
        "Do not wait for the GPU inside the step",
        gain,
        why,
        "look for .item(), .cpu(), nonzero, print of a tensor and torch.cuda.synchronize in the "
        "step; copy with non_blocking=True from pinned memory",
        _NO_SYNC,
    )


def _waits(name: str) -> bool:
    """Return whether a call or copy blocks the host until the GPU is done."""
    return synchronises(name) or ("Pageable" in name and ("DtoH" in name or "ToHost" in name))


def _queued(job: _Job) -> Iterator[Loss]:
    gain, rank = job.most(lambda r: _idle(r, (QUEUED,)))
    count = sum(part.count for part in rank.step_idle if part.what == QUEUED)
    gaps = f"{count} gaps" if count > 1 else "a gap"
    yield job.loss(
        rank,
        "Close the gaps between queued kernels",
        gain,
        f"the GPU idles {format_time(gain)} of a step{job.where(rank)} in {gaps} before "
        "kernels that were launched long before: the host is not what they wait for",
        "fewer and larger kernels (torch.compile fuses them, a larger batch); in a CUDA graph look "
        "for host nodes, memory nodes and dependencies between its branches; and see whether "
        "another process uses the GPU",
        "no-gaps",
    )


def _allocating(job: _Job) -> Iterator[Loss]:
    gain, rank = job.most(lambda r: _idle(r, (ALLOCATING,)))
    yield job.loss(
        rank,
        "Stop allocating memory inside the step",
        gain,
        f"the GPU idles {format_time(gain)} of a step{job.where(rank)} while memory is "
        "allocated or freed",
        "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True, constant shapes, no empty_cache() calls",
    )


def _unseen(job: _Job) -> Iterator[Loss]:
    gain, rank = job.most(lambda r: _idle(r, (UNSEEN,)))
    yield job.loss(
        rank,
        "Record the host too",
        gain,
        f"the GPU idles {format_time(gain)} of a step{job.where(rank)}, and without the calls that "
        "launched its work nothing says why",
        "torch.profiler with ProfilerActivity.CPU and .CUDA, or rocprofv3 with --hip-trace",
    )


def _idle(rank: RankAnalysis, reasons: Sequence[str]) -> float:
    """Return the idle seconds of the mean step that have one of ``reasons``."""
    return sum(part.seconds for part in rank.step_idle if part.what in reasons)


def _kernels(job: _Job, longest: float) -> Iterator[Loss]:
    """Yield what a busy GPU spends its time on."""
    rank = max(job.ranks, key=lambda r: r.busy_share)
    parts = [part for part in rank.kernels if part.what != COMMUNICATION]
    if rank.busy_share < _BUSY or not parts or longest <= 0:
        return
    first, total = parts[0], sum(part.seconds for part in rank.kernels)
    listed = ", ".join(
        f"{part.what} {100 * part.seconds / total:.0f} %" for part in rank.kernels[:_LISTED]
    )
    how = _KERNEL_HOW.get(first.what, "look at the longest of them with a kernel profiler")
    found = job.loss(
        rank,
        f"Spend less time in {first.what}{' kernels' * (first.what == ELEMENTWISE)}",
        first.seconds,
        f"the GPU is busy for {100 * rank.busy_share:.0f} % of a step{job.where(rank)}: {listed} "
        "of kernel time",
        how,
        KERNELS,
    )
    yield Loss(found.rank, replace(found.advice, share=first.seconds / longest))


_LOOKS: tuple[Callable[[_Job], Iterator[Loss]], ...] = (
    _waiting,
    _moving,
    _many_small,
    _slow_links,
    _overlap,
    _host,
    _input,
    _syncs,
    _queued,
    _allocating,
    _unseen,
)
