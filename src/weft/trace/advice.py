"""What to do first: where a step loses most that something can be done about.

Every gain is a bound: what a step would save if the loss vanished. It is counted on the rank that
loses most by it.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence

from weft.trace.analysis import Advice, RankAnalysis, Straggler
from weft.trace.idle import ALLOCATING, LATENCY, LAUNCHING, LOADING, OPERATORS, PYTHON, SYNC
from weft.units import format_rate, format_size, format_time

_WORTH = 0.01  # of a step: less is not worth saying
_SHOWN = 3
_FAR = 0.7  # of what the link can do: less is slow


def advise(ranks: Sequence[RankAnalysis], late: Sequence[Straggler]) -> tuple[Advice, ...]:
    """Give the things to do first, the most promising first."""
    useful = [rank for rank in ranks if rank.total.num_gpu_events]
    found = [advice for look in _LOOKS for advice in look(useful, late)] if useful else []
    longest = max((rank.step_time or rank.span for rank in useful), default=0.0)
    worth = [advice for advice in found if advice.gain >= _WORTH * longest and advice.gain > 0]
    return tuple(sorted(worth, key=lambda advice: -advice.gain)[:_SHOWN])


def _most(
    ranks: Sequence[RankAnalysis], loss: Callable[[RankAnalysis], float]
) -> tuple[float, RankAnalysis]:
    """Give the greatest loss of a step, and the rank that has it."""
    worst = max(ranks, key=loss)
    return loss(worst), worst


def _per_step(rank: RankAnalysis, seconds: float) -> float:
    """Give what is summed over all steps of a file for one of them."""
    return seconds / max(len(rank.steps), 1)


def _where(rank: RankAnalysis, ranks: Sequence[RankAnalysis]) -> str:
    return f" on rank {rank.rank}" if len(ranks) > 1 and rank.rank is not None else ""


def _waiting(ranks: Sequence[RankAnalysis], late: Sequence[Straggler]) -> Iterator[Advice]:
    gain, rank = _most(ranks, lambda r: r.mean_step.exposed_waiting or 0.0)
    if late:
        first = late[0]
        title = f"Find out why rank {first.rank} is late"
        why = (
            f"{format_time(gain)} of a step{_where(rank, ranks)} is spent waiting for other ranks; "
            f"rank {first.rank} was the last in {first.num_last} of {first.num_collectives} "
            f"collectives and {first.why}"
        )
    else:
        title = "Record all ranks: this one waits for others"
        why = (
            f"about {format_time(gain)} of a step is spent in collectives beyond what the link "
            f"needs for their bytes ({rank.basis})"
        )
    how = (
        "balance the work of the ranks (batches, shards, data loading), or let the late rank's "
        "host launch earlier; no faster link helps"
    )
    yield Advice(title, gain, why, how)


def _moving(ranks: Sequence[RankAnalysis], _late: Sequence[Straggler]) -> Iterator[Advice]:
    gain, rank = _most(ranks, lambda r: r.mean_step.exposed_moving or 0.0)
    total: dict[tuple[str, int | None], float] = defaultdict(float)
    for use in rank.collectives:
        if use.moving:
            total[use.kind, use.nbytes] += use.moving * use.exposed / max(use.seconds, 1e-12)
    if not total:
        return
    kind, nbytes = max(total, key=total.__getitem__)
    size = f" of {format_size(nbytes)}" if nbytes else ""
    yield Advice(
        "Hide communication behind computation",
        gain,
        f"bytes move for {format_time(gain)} of a step{_where(rank, ranks)} while the GPU computes "
        f"nothing, most of it in {kind}{size}",
        "start collectives earlier or in smaller pieces, or let another engine carry them: "
        "`weft whatif` prices each strategy",
    )


def _slow_links(ranks: Sequence[RankAnalysis], _late: Sequence[Straggler]) -> Iterator[Advice]:
    def loss(rank: RankAnalysis) -> float:
        slow = [u for u in rank.collectives if u.basis == "measured" and _is_slow(u.busbw, u.link)]
        lost = sum((u.moving or 0.0) * (1 - (u.busbw or 0.0) / (u.link or 1.0)) for u in slow)
        return _per_step(rank, lost)

    gain, rank = _most(ranks, loss)
    if gain <= 0:
        return
    worst = max(
        (u for u in rank.collectives if _is_slow(u.busbw, u.link)), key=lambda u: u.moving or 0.0
    )
    yield Advice(
        "Find out why the links are slow",
        gain,
        f"{worst.kind} of {format_size(worst.nbytes or 0)} reached "
        f"{format_rate(worst.busbw or 0.0)} of bus bandwidth, the link can do "
        f"{format_rate(worst.link or 0.0)}",
        "compare with nccl-tests on the same nodes; look at NCCL_DEBUG=INFO for the path it took",
    )


def _is_slow(busbw: float | None, link: float | None) -> bool:
    return busbw is not None and link is not None and busbw < _FAR * link


def _overlap(ranks: Sequence[RankAnalysis], _late: Sequence[Straggler]) -> Iterator[Advice]:
    gain, rank = _most(ranks, lambda r: _per_step(r, sum(s.lost for s in r.slowdowns)))
    if not rank.slowdowns:
        return
    worst = max(rank.slowdowns, key=lambda s: s.lost)
    yield Advice(
        "Let communication take less of the GPU",
        gain,
        f"{worst.family} kernels take {worst.weighted:.2f} times as long beside communication "
        f"({worst.num_pairs} seen both ways)",
        "fewer channels (NCCL_MAX_NCHANNELS), a copy engine, or a partition of the units: see "
        "`weft c3`",
    )


def _host(ranks: Sequence[RankAnalysis], _late: Sequence[Straggler]) -> Iterator[Advice]:
    reasons = (LAUNCHING, OPERATORS, PYTHON, LATENCY)
    gain, rank = _most(ranks, lambda r: _idle(r, reasons))
    inside = ", ".join(part.what for part in rank.idle_under[:2]) or "Python"
    yield Advice(
        "Let the host get ahead of the GPU",
        gain,
        f"the GPU idles {format_time(gain)} of a step{_where(rank, ranks)} because its next kernel "
        f"was not launched yet; the host was meanwhile mostly in: {inside}",
        "fewer and larger kernels: torch.compile, CUDA graphs (mode='reduce-overhead'), fused or "
        "foreach optimizers, a larger batch",
    )


def _syncs(ranks: Sequence[RankAnalysis], _late: Sequence[Straggler]) -> Iterator[Advice]:
    gain, rank = _most(ranks, lambda r: _idle(r, (SYNC,)))
    yield Advice(
        "Do not wait for the GPU inside the step",
        gain,
        f"the GPU idles {format_time(gain)} of a step{_where(rank, ranks)} while the host returns "
        "from waiting for it",
        "look for .item(), .cpu(), nonzero, print of a tensor and torch.cuda.synchronize in the "
        "step; copy with non_blocking=True from pinned memory",
    )


def _loading(ranks: Sequence[RankAnalysis], _late: Sequence[Straggler]) -> Iterator[Advice]:
    gain, rank = _most(ranks, lambda r: _idle(r, (LOADING,)))
    yield Advice(
        "Load data ahead of the step",
        gain,
        f"the GPU idles {format_time(gain)} of a step{_where(rank, ranks)} while its next batch is "
        "loaded",
        "more workers (num_workers), prefetch_factor, pin_memory=True, or decode on the GPU",
    )


def _allocating(ranks: Sequence[RankAnalysis], _late: Sequence[Straggler]) -> Iterator[Advice]:
    gain, rank = _most(ranks, lambda r: _idle(r, (ALLOCATING,)))
    yield Advice(
        "Stop allocating memory inside the step",
        gain,
        f"the GPU idles {format_time(gain)} of a step{_where(rank, ranks)} while memory is "
        "allocated or freed",
        "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True, constant shapes, no empty_cache() calls",
    )


def _idle(rank: RankAnalysis, reasons: Sequence[str]) -> float:
    """Give how long the GPU idles in a step for some reasons."""
    total = sum(part.seconds for part in rank.idle)
    if not total:
        return 0.0
    idle = max((rank.step_time or rank.span) - rank.mean_step.busy, 0.0)
    return idle * sum(part.seconds for part in rank.idle if part.what in reasons) / total


_LOOKS: tuple[Callable[[Sequence[RankAnalysis], Sequence[Straggler]], Iterator[Advice]], ...] = (
    _waiting,
    _moving,
    _slow_links,
    _overlap,
    _host,
    _syncs,
    _loading,
    _allocating,
)
