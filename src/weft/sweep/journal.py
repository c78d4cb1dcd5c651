"""The journal of a sweep: one JSON line per answered cell, so that a sweep can be resumed."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from weft.errors import FormatError, UsageError
from weft.sweep.cells import Sweep

_FORMAT = 1


@dataclass(frozen=True, slots=True)
class CellAnswer:
    """The rows of one cell, or its error; ``again``: a retry may help."""

    number: int
    rows: list[dict[str, Any]] = field(default_factory=list)
    error: str = ""
    again: bool = False


@dataclass
class Journal:
    """The answers of one sweep, stored in a file if a path is given."""

    sweep: Sweep
    path: Path | None = None
    answers: dict[int, CellAnswer] = field(default_factory=dict)

    @staticmethod
    def open(sweep: Sweep, path: Path | None) -> Journal:
        """Resume the file of the same sweep, or start a new one."""
        journal = Journal(sweep, path)
        if path is not None and path.exists() and path.stat().st_size:
            journal._read(path)
        elif path is not None:
            journal._write_line(
                {
                    "weft_sweep": _FORMAT,
                    "fingerprint": sweep.fingerprint,
                    "words": list(sweep.words),
                    "cells": len(sweep.cells),
                }
            )
        return journal

    @property
    def open_cells(self) -> list[int]:
        """The numbers of cells without an answer, or whose error may be transient."""
        done = {number for number, answer in self.answers.items() if not answer.again}
        return [number for number in range(len(self.sweep.cells)) if number not in done]

    @property
    def failed(self) -> int:
        """The number of cells that ended in an error."""
        return sum(bool(answer.error) for answer in self.answers.values())

    def add(self, answer: CellAnswer) -> None:
        """Record an answer; the file is written first."""
        self.answers[answer.number] = answer
        if self.path is not None:
            known = {"number": answer.number, "rows": answer.rows}
            error = {"error": answer.error, "again": answer.again} if answer.error else {}
            self._write_line(known | error)

    def rows(self) -> list[dict[str, Any]]:
        """Return every row, preceded by the values of its cell, in the order of the cells."""
        found = []
        for number, cell in enumerate(self.sweep.cells):
            answer = self.answers.get(number)
            if answer is None:
                continue
            values = dict(cell.values)
            rows = answer.rows or [{}]
            # "all" stands for several values of an option, of which each row has its own
            several = [k for k in values if len({str(row.get(k)) for row in rows}) > 1]
            kept = {key: value for key, value in values.items() if key not in several}
            error = {"error": answer.error} if answer.error else {}
            found += [values | row | kept | error for row in rows]
        return found

    def _write_line(self, value: dict[str, Any]) -> None:
        assert self.path is not None
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(value) + "\n")

    def _read(self, path: Path) -> None:
        lines = _lines(path)
        try:
            head = msgspec.convert(lines[0], _Head)
            answers = msgspec.convert(lines[1:], list[CellAnswer])
        except msgspec.ValidationError:
            raise _no_sweep(path) from None
        if head.weft_sweep != _FORMAT:
            raise _no_sweep(path)
        if head.fingerprint != self.sweep.fingerprint:
            same = tuple(head.words) == self.sweep.words
            why = "files that it reads have changed" if same else " ".join(head.words)
            raise UsageError(
                f"{path} holds the results of another sweep: {why}",
                "Remove it, or use another -o.",
            )
        if any(answer.number not in range(len(self.sweep.cells)) for answer in answers):
            raise _no_sweep(path)
        self.answers |= {answer.number: answer for answer in answers}


class _Head(msgspec.Struct):
    weft_sweep: int
    fingerprint: str
    words: list[str]


def _no_sweep(path: Path) -> FormatError:
    return FormatError(f"{path} is not a journal of a sweep", "Use another -o.")


def _lines(path: Path) -> list[dict[str, Any]]:
    """Read the lines of a file; drop an incomplete last line from the file."""
    text = path.read_text(encoding="utf-8", errors="replace")
    whole, newline, cut = text.rpartition("\n")
    try:
        found = [json.loads(line) for line in whole.splitlines()]
        valid = bool(found) and all(isinstance(line, dict) for line in found)
    except (ValueError, RecursionError):
        valid = False
    if not valid:
        raise _no_sweep(path)
    if cut:
        path.write_text(whole + newline, encoding="utf-8")
    return found
