"""In which order the stages of a pipeline carry out the passes of their micro batches."""

from itertools import chain
from typing import Literal, NamedTuple

from weft.models.transformer import Transformer

Part = Literal["forward", "backward", "input", "weight"]


class Pass(NamedTuple):
    """One micro batch through one of the chunks of layers of a stage.

    A backward pass is whole, or its gradients of inputs and of weights are apart.
    """

    part: Part
    micro: int
    chunk: int = 0

    @property
    def forward(self) -> bool:
        """Whether this is a forward pass."""
        return self.part == "forward"


class PassOrder(NamedTuple):
    """What the order of the passes of a stage depends on."""

    schedule: str  # of the pipeline, "dual", or "overlapped": experts with another micro batch
    num_stages: int
    stage: int
    num_micro: int
    num_chunks: int

    @classmethod
    def of(cls, model: Transformer, stage: int, num_micro: int) -> "PassOrder":
        """Return the order of a stage of a model."""
        schedule = model.schedule if model.pp > 1 else "1f1b"
        if model.overlaps_experts:
            schedule = "overlapped"
        if model.is_dual:
            schedule = "dual"
        return cls(schedule, model.pp, stage, num_micro, model.interleave)

    def passes(self) -> list[tuple[Pass, ...]]:
        """Return the passes of a training step in order, those together that overlap."""
        schedule, num_stages, stage, num_micro, num_chunks = self
        if schedule == "dual":
            return dual_passes(num_stages, stage, num_micro)
        if schedule == "overlapped":
            return overlapped_passes(num_stages, stage, num_micro, num_chunks)
        order = passes(num_stages, stage, num_micro, num_chunks, schedule)
        return [(each,) for each in order]


def passes(
    num_stages: int, stage: int, num_micro: int, num_chunks: int = 1, schedule: str = "1f1b"
) -> list[Pass]:
    """Return the passes of a stage in order.

    >>> shown = lambda order: " ".join(p.part[0].upper() + str(p.micro) for p in order)
    >>> shown(passes(2, 0, 3)), shown(passes(2, 1, 2))
    ('F0 F1 B0 F2 B1 B2', 'F0 B0 F1 B1')
    >>> shown(passes(2, 0, 2, schedule="gpipe"))
    'F0 F1 B1 B0'
    >>> shown(passes(2, 1, 3, schedule="zb"))
    'F0 I0 F1 I1 W0 F2 I2 W1 W2'
    """
    if schedule == "gpipe":
        ahead = [Pass("forward", micro) for micro in range(num_micro)]
        return ahead + [Pass("backward", each.micro) for each in reversed(ahead)]
    order = [*chain(*overlapped_passes(num_stages, stage, num_micro, num_chunks, pairs=False))]
    return _zero_bubble(order, stage) if schedule == "zb" else order


def overlapped_passes(
    num_stages: int, stage: int, num_micro: int, num_chunks: int, *, pairs: bool = True
) -> list[tuple[Pass, ...]]:
    """One forward, one backward in turn, after as many forward as keep the other stages busy.

    With several chunks a stage holds layers from several places of the model and takes them in
    turns of ``num_stages`` micro batches, which makes the idle ends shorter (arXiv 2104.04473).
    With ``pairs`` a stage runs one more forward pass ahead, so that a forward and a backward pass
    of different micro batches stand together and overlap; a stage gets results of a pair when it
    has ended, which is one more pass ahead for each stage that follows (as if interleaved).

    >>> [len(each) for each in overlapped_passes(1, 0, 3, 1)]
    [1, 2, 2, 1]
    """
    total = num_micro * num_chunks
    ahead = num_stages - 1 - stage
    if num_chunks > 1 or pairs:
        ahead = 2 * ahead + (num_chunks - 1) * num_stages
    ahead = min(total, ahead + pairs)
    turn = num_stages * num_chunks

    def one(number: int, part: Part) -> Pass:
        if num_chunks == 1:
            return Pass(part, number)
        place = number % turn
        chunk = place // num_stages
        micro = number // turn * num_stages + place % num_stages
        return Pass(part, micro, chunk if part == "forward" else num_chunks - 1 - chunk)

    order: list[tuple[Pass, ...]] = [(one(number, "forward"),) for number in range(ahead)]
    for number in range(total - ahead):
        pair = one(ahead + number, "forward"), one(number, "backward")
        order += [pair] if pairs else [(each,) for each in pair]
    return order + [(one(number, "backward"),) for number in range(total - ahead, total)]


def _zero_bubble(order: list[Pass], stage: int) -> list[Pass]:
    """Put gradients of weights off by as many micro batches as stages are before this one.

    Later stages start later and fill the wait for their last gradients with those of weights; as
    many micro batches are kept as without (schedule ZB-H1, arXiv 2401.10241).
    """
    found: list[Pass] = []
    waiting: list[Pass] = []
    for each in order:
        if each.forward:
            found.append(each)
            continue
        found.append(each._replace(part="input"))
        waiting.append(each._replace(part="weight"))
        if len(waiting) > stage:
            found.append(waiting.pop(0))
    return found + waiting


def dual_passes(num_stages: int, stage: int, num_micro: int) -> list[tuple[Pass, ...]]:
    """DualPipe (arXiv 2412.19437): micro batches enter at both ends, and passes overlap in pairs.

    Half of the micro batches go up the pipeline, through chunk 0 of each stage, and half go down,
    through chunk 1, which holds the layers of the stage opposite; ``micro`` counts each half by
    itself. Eight parts follow each other, as deepseek-ai/DualPipe has them.

    >>> shown = lambda group: "&".join(p.part[0].upper() + str(p.chunk) for p in group)
    >>> " ".join(shown(group) for group in dual_passes(2, 0, 4))
    'F0 F1 F0 B1 F1&B0 B1 I0 W0'
    """
    half = num_stages // 2
    inner = min(stage, num_stages - 1 - stage)  # stages before this one, from the nearer end
    outer = half - 1 - inner
    count = {(part, direction): 0 for part in ("forward", "backward") for direction in (0, 1)}
    waiting: list[Pass] = []  # gradients of weights that are put off
    order: list[tuple[Pass, ...]] = []

    def one(part: Part, direction: int) -> Pass:
        chunk = direction ^ (stage >= half)
        key = ("forward" if part == "forward" else "backward", direction)
        count[key] += 1
        found = Pass(part, count[key] - 1, chunk)
        if part == "input":
            waiting.append(found._replace(part="weight"))
        return found

    order += [(one("forward", 0),) for _ in range(2 * outer)]
    for _ in range(inner + 1):
        order += [(one("forward", 0),), (one("forward", 1),)]
    for _ in range(outer):
        order += [(one("input", 1),), (waiting.pop(0),), (one("forward", 1),)]
    for number in range(num_micro // 2 - num_stages + inner + 1):
        pair = one("forward", 0), one("backward", 1)
        together = number or inner < half - 1  # in the middle this pair depends on each other
        order += [pair] if together else [(each,) for each in pair]
        order.append((one("forward", 1), one("backward", 0)))
    for _ in range(outer):
        order += [(one("backward", 1),), (one("forward", 1), one("backward", 0))]
    for number in range(inner + 1):
        for direction in (1, 0):
            late = (number, 1 - direction) >= ((inner + 1) // 2, 1 - inner % 2)
            order.append((one("input" if late else "backward", direction),))
    for _ in range(outer):
        order += [(waiting.pop(0),), (one("input", 0),)]
    return order + [(each,) for each in waiting]
