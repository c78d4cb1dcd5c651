"""Checks on compiled kernels: whether payloads are complete before flags, and bytes in flight.

The code of a kernel (AMD GCN assembly or PTX) is read as a graph of instructions. Over all paths,
a state of the stores of a program is propagated:

    store ──▶ ISSUED ── s_waitcnt vmcnt(0) ──▶ LANDED (this wave's) ── s_barrier ──▶ COMPLETE (all)

A release at system scope (``buffer_wbl2 sc0 sc1`` on gfx942, ``atom.release.sys`` in PTX) is safe
only where the state is COMPLETE. PTX needs no wait: its barrier orders the stores of all threads
(PTX ISA, memory consistency model, causality order).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Literal

from weft.errors import FormatError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

Isa = Literal["amdgcn", "ptx"]
_ROUNDS = 64  # over a kernel, until states do not change; loops are nested a few times


class StoreState(IntEnum):
    """The worst that can be true of a program's stores at a point of its code."""

    COMPLETE = 0  # of all waves
    LANDED = 1  # of this wave; others may have some under way
    ISSUED = 2


@dataclass(frozen=True, slots=True)
class CodeLine:
    """An instruction: its line in the file, its text, and where control goes from it.

    ``source`` is the line of the kernel's source that it was compiled from, 0 if unknown.
    """

    number: int
    text: str
    source: int = 0
    jumps_to: str | None = None
    falls_through: bool = True


@dataclass(frozen=True, slots=True)
class CompiledKernel:
    """The instructions of one kernel, with the places of its labels."""

    isa: Isa
    lines: tuple[CodeLine, ...]
    labels: dict[str, int]

    def unsafe_releases(self, *, num_warps: int) -> list[str]:
        """Return the releases at system scope that some wave's stores may not precede."""
        step = _gcn_state if self.isa == "amdgcn" else _ptx_state
        worst = StoreState.LANDED if num_warps == 1 else StoreState.COMPLETE
        if self.isa == "ptx" and num_warps == 1:
            worst = StoreState.COMPLETE
        found = self._states(lambda line, state: step(line, state, num_warps))
        return [
            f"line {line.number}: {line.text} while stores are {StoreState(state).name}"
            for line, state in zip(self.lines, found, strict=True)
            if self._is_release(line) and state is not None and state > worst
        ]

    @property
    def num_releases(self) -> int:
        """The number of places that publish at system scope."""
        return sum(map(self._is_release, self.lines))

    def bytes_in_flight(self, *, threads: int, sources: Collection[int]) -> int:
        """Return the most bytes that loads of some source lines have under way in a program."""
        counted = _gcn_loads if self.isa == "amdgcn" else _ptx_loads
        return threads * counted(self, sources)

    def widest_store(self) -> int:
        """Return the bytes of the widest store of a thread."""
        return max((_stored(self.isa, line.text) for line in self.lines), default=0)

    def _is_release(self, line: CodeLine) -> bool:
        if self.isa == "amdgcn":
            return line.text.startswith("buffer_wbl2") and "sc1" in line.text
        return bool(re.search(r"\b(atom|red)\S*\.(release|acq_rel)", line.text)) and (
            ".sys" in line.text
        )

    def successors(self, at: int) -> list[int]:
        """Return the places that control can go to from an instruction."""
        line, found = self.lines[at], []
        if line.falls_through and at + 1 < len(self.lines):
            found.append(at + 1)
        if line.jumps_to is not None:
            place = self.labels.get(line.jumps_to)
            if place is None:
                raise FormatError(f"line {line.number}: no label {line.jumps_to!r} in the code.")
            if place < len(self.lines):
                found.append(place)
        return found

    def _states(self, after: Callable[[CodeLine, int], int]) -> list[int | None]:
        """Return the worst state before every instruction over all paths; None: unreachable."""
        before: list[int | None] = [None] * len(self.lines)
        if not self.lines:
            return before
        before[0] = StoreState.COMPLETE
        changed = [0]
        while changed:
            at = changed.pop()
            state = before[at]
            assert state is not None
            then = after(self.lines[at], state)
            for place in self.successors(at):
                known = before[place]
                if known is None or then > known:
                    before[place] = then
                    changed.append(place)
        return before


def parse_kernel(code: str, isa: Isa) -> CompiledKernel:
    """Parse the assembly of one kernel."""
    lines: list[CodeLine] = []
    labels: dict[str, int] = {}
    pattern = re.compile(r"^([.$]?L[\w$]+|\$L__\w+):")
    started, source, in_asm = isa == "amdgcn", 0, False
    for number, whole in enumerate(code.splitlines(), start=1):
        text = re.split(r";" if isa == "amdgcn" else r"//", whole)[0].strip()
        started = started or text.startswith("{")
        place = re.match(r"\.loc\s+\d+\s+(\d+)", text)
        if "inline asm" in whole:  # whose lines are counted on from the one it stands on
            in_asm = "begin" in whole
        if place and not in_asm:
            source = int(place[1])
        label = pattern.match(text)
        if label:
            labels[label[1]] = len(lines)
            continue
        if not started or not text or text.startswith((".", "{", "}", "#")) or text.endswith(":"):
            continue
        if text.startswith("s_endpgm") or re.match(r"(ret|exit|trap)\b", text):
            lines.append(CodeLine(number, text, source, falls_through=False))
            continue
        jump = re.match(
            r"s_(c?)branch\S*\s+(\S+)" if isa == "amdgcn" else r"(@\S+\s+)?bra\S*\s+([^;\s]+)", text
        )
        if jump:
            lines.append(CodeLine(number, text, source, jump[2], falls_through=bool(jump[1])))
        else:
            lines.append(CodeLine(number, text, source))
    if not lines:
        raise FormatError(f"no instructions of {isa} in the code.", "Pass the text of one kernel.")
    return CompiledKernel(isa, tuple(lines), labels)


def _gcn_state(line: CodeLine, state: int, num_warps: int) -> int:
    text = line.text
    if re.match(r"(global|flat|buffer)_store", text):
        return StoreState.ISSUED
    if text.startswith("s_waitcnt") and "vmcnt(0)" in text:
        return min(state, StoreState.LANDED)
    if text.startswith("s_barrier") and state == StoreState.LANDED:
        return StoreState.COMPLETE
    del num_warps
    return state


def _ptx_state(line: CodeLine, state: int, num_warps: int) -> int:
    text = re.sub(r"^@\S+\s+", "", line.text)
    if re.match(r"st\.(?!shared|local|param)", text):
        return StoreState.ISSUED
    if re.match(r"(bar|barrier)\S*\.sync", text) and not text.startswith("bar.warp"):
        return StoreState.COMPLETE
    if text.startswith("bar.warp.sync") and num_warps == 1:
        return StoreState.COMPLETE
    return state


_GCN_LOAD = re.compile(r"(?:global|flat|buffer)_load_(\w+)")
_GCN_WIDTHS = {"dwordx4": 16, "dwordx3": 12, "dwordx2": 8, "dword": 4, "ushort": 2, "ubyte": 1}
_GCN_WIDTHS |= {"sshort": 2, "sbyte": 1, "short_d16": 2, "short_d16_hi": 2, "ubyte_d16": 1}


def _stored(isa: Isa, text: str) -> int:
    if isa == "amdgcn":
        found = re.match(r"(?:global|flat|buffer)_store_(\w+)", text)
        return _GCN_WIDTHS.get(found[1].replace("short", "ushort"), 0) if found else 0
    return _ptx_width(text, "st")


def _ptx_width(text: str, op: str) -> int:
    found = re.match(
        rf"(?:@\S+\s+)?{op}\.(?!shared|local|param)\S*?(?:\.v(\d))?\.[bufs](\d+)\b", text
    )
    return int(found[1] or 1) * int(found[2]) // 8 if found else 0


def _gcn_loads(kernel: CompiledKernel, sources: Collection[int]) -> int:
    """Count loads between waits: ``vmcnt(n)`` leaves the last n operations under way.

    Where paths meet, the one with more under way is taken: branches around a load skip it only if
    no lane needs it. An instruction counts once: loops around one load serve lanes in turn.
    """
    best = 0
    before: dict[int, dict[int, int]] = {0: {}}  # bytes of the operations under way, in order
    for _ in range(_ROUNDS):
        changed = False
        for at, line in enumerate(kernel.lines):
            if at not in before:
                continue
            under_way = dict(before[at])
            load = _GCN_LOAD.match(line.text)
            wait = re.match(r"s_waitcnt.*vmcnt\((\d+)\)", line.text)
            if load or re.match(r"(global|flat|buffer)_(store|atomic)", line.text):
                under_way.pop(at, None)
                counts = load is not None and line.source in sources
                under_way[at] = _GCN_WIDTHS.get(load[1], 0) if load and counts else 0
            elif wait:
                left = int(wait[1])
                under_way = dict(list(under_way.items())[-left:] if left else ())
            best = max(best, sum(under_way.values()))
            for place in kernel.successors(at):
                if place not in before or sum(under_way.values()) > sum(before[place].values()):
                    before[place] = under_way
                    changed = True
        if not changed:
            break
    return best


def _ptx_loads(kernel: CompiledKernel, sources: Collection[int]) -> int:
    """Count loads whose registers nothing has read yet, along the code as it stands.

    The assembler behind PTX may move instructions; it does not move loads behind the first use of
    an earlier one unless registers run out.
    """
    best, under_way = 0, dict[str, tuple[int, int]]()
    for number, line in enumerate(kernel.lines):
        width = _ptx_width(line.text, "ld")
        names = re.findall(r"%\w+", line.text)
        if width:
            target = re.search(r"\{([^}]*)\}|\s(%\w+),", line.text)
            written = re.findall(r"%\w+", target[0]) if target else []
            used: Sequence[str] = [name for name in names if name not in written]
        else:
            written, used = [], names
        for name in used:
            if name in under_way:
                gone = under_way[name][0]
                under_way = {k: v for k, v in under_way.items() if v[0] != gone}
        for position, name in enumerate(written):
            counts = position == 0 and line.source in sources
            under_way[name] = (number, width if counts else 0)
        best = max(best, sum(each for _, each in under_way.values()))
    return best
