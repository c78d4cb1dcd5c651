"""An analysis whose advice is ranked by what a replay of the job says it saves.

Every gain is that of the same change in ``weft whatif``: the two answer the same question with the
same replay. Where the replay cannot be used, an advice keeps what the step loses as a bound and
says why.
"""

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from weft.errors import WeftError
from weft.trace import Analysis, StepAdvice
from weft.trace.analysis.analysis_result import REPLAYED
from weft.trace.analysis.analyzing import JobAnalysis
from weft.trace.analysis.analyzing import analyze as analyze_files
from weft.trace.analysis.rank_digest import Progress
from weft.trace.analysis.trace_advice import KERNELS, Loss, late_rank, losses
from weft.whatif.answer import NO_STRAGGLER, Answer, answers_of

_HOST = "no-host"  # nothing done about the host saves more
_NO_CHANGE = "weft whatif has no such change"


def analyze(
    paths: str | Path | Iterable[str | Path], *, on: str = "", progress: Progress | None = None
) -> Analysis:
    """Read the traces of a job, one per rank; say where its time goes and what to do first.

    ``paths`` are files, folders, globs or zip archives; ``on`` is the machine of traces that name
    no device.
    """
    return analyze_files(paths, replayed, on=on, progress=progress)


def replayed(found: JobAnalysis) -> list[StepAdvice]:
    """Advise on a job by what its replay says that each advice saves."""
    lost = losses(found.ranks, found.stragglers)
    names = [loss.advice.change for loss in lost if loss.advice.change not in ("", KERNELS)]
    if not names:
        return [loss.advice for loss in lost]
    if not all(loss.advice.change for loss in lost):
        names.append(_HOST)
    try:
        answers = answers_of(found.job, [*dict.fromkeys(names)], anyway=True)
    except WeftError as error:
        why = str(error).replace(repr(found.ranks[0].file), "the file")
        return [_bounded(loss.advice, why.rstrip(".")) for loss in lost]
    return [_priced(loss, answers, found) for loss in lost]


def _priced(loss: Loss, answers: list[Answer], found: JobAnalysis) -> StepAdvice:
    advice, answer = loss.advice, answers[0] if len(answers) == 1 else answers[loss.rank]
    if answer.doubt:
        return _bounded(advice, answer.doubt)
    gains = {outcome.name: outcome.gain for outcome in answer.outcomes}
    if advice.change == KERNELS:
        return advice
    if advice.doubt:  # it says itself why no replay can tell
        return advice
    if not advice.change:
        share = min(advice.share, gains.get(_HOST, advice.share))
        bound = replace(advice, share=share, gain=share * answer.replayed_step)
        return _bounded(bound, _NO_CHANGE)
    if advice.change == NO_STRAGGLER and answer.straggler is not None:
        title, why = late_rank(found.stragglers, answer.straggler)
        advice = replace(advice, title=title, why=why)
    share = gains.get(advice.change, 0.0)  # a change that is missing changes nothing
    return replace(advice, basis=REPLAYED, share=share, gain=share * answer.replayed_step)


def _bounded(advice: StepAdvice, doubt: str) -> StepAdvice:
    return replace(advice, doubt="" if advice.change == KERNELS else doubt)
