"""In which order the stages of a pipeline carry out the passes of their micro batches."""

from __future__ import annotations

from typing import NamedTuple


class Pass(NamedTuple):
    """One micro batch, forward or backward, through one of the chunks of layers of a stage."""

    forward: bool
    micro: int
    chunk: int = 0


def passes(num_stages: int, stage: int, num_micro: int, num_chunks: int = 1) -> list[Pass]:
    """Give one forward, one backward in turn, after as many forward as keep the others busy.

    With several chunks a stage holds layers from several places of the model and takes them in
    turns of ``num_stages`` micro batches, which makes the idle ends shorter (arXiv 2104.04473).

    >>> ["FB"[not p.forward] + str(p.micro) for p in passes(2, 0, 3)]
    ['F0', 'F1', 'B0', 'F2', 'B1', 'B2']
    >>> ["FB"[not p.forward] + str(p.micro) for p in passes(2, 1, 2)]
    ['F0', 'B0', 'F1', 'B1']
    """
    total = num_micro * num_chunks
    ahead = num_stages - 1 - stage
    if num_chunks > 1:
        ahead = 2 * ahead + (num_chunks - 1) * num_stages
    ahead = min(total, ahead)
    turn = num_stages * num_chunks

    def one(number: int, *, forward: bool) -> Pass:
        if num_chunks == 1:
            return Pass(forward, number)
        place = number % turn
        chunk = place // num_stages
        micro = number // turn * num_stages + place % num_stages
        return Pass(forward, micro, chunk if forward else num_chunks - 1 - chunk)

    order = [one(number, forward=True) for number in range(ahead)]
    for number in range(total - ahead):
        order += [one(ahead + number, forward=True), one(number, forward=False)]
    return order + [one(number, forward=False) for number in range(total - ahead, total)]
