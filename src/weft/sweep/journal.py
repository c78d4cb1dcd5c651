"""What a sweep has answered so far: a line of JSON a cell, so that it can be continued."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from weft.errors import FormatError, UsageError

if TYPE_CHECKING:
    from weft.sweep.cells import Sweep

_FORMAT = 1


@dataclass(frozen=True, slots=True)
class Answer:
    """The rows of one cell, or what went wrong; ``again`` where another try may help."""

    number: int
    rows: list[dict[str, Any]] = field(default_factory=list)
    error: str = ""
    again: bool = False


@dataclass
class Journal:
    """The answers of one sweep, kept in a file if there is one."""

    sweep: Sweep
    path: Path | None = None
    answers: dict[int, Answer] = field(default_factory=dict)

    @staticmethod
    def open(sweep: Sweep, path: Path | None) -> Journal:
        """Go on with a file of the same sweep, or begin one."""
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
        """The numbers of cells that have no answer yet, or one that may be better next time."""
        done = {number for number, answer in self.answers.items() if not answer.again}
        return [number for number in range(len(self.sweep.cells)) if number not in done]

    @property
    def failed(self) -> int:
        """How many cells ended in an error."""
        return sum(bool(answer.error) for answer in self.answers.values())

    def add(self, answer: Answer) -> None:
        """Keep an answer: in the file before anything else happens."""
        self.answers[answer.number] = answer
        if self.path is not None:
            known = {"number": answer.number, "rows": answer.rows}
            error = {"error": answer.error, "again": answer.again} if answer.error else {}
            self._write_line(known | error)

    def rows(self) -> list[dict[str, Any]]:
        """Give every row with the values of its cell in front, in the order of the cells."""
        found = []
        for number, cell in enumerate(self.sweep.cells):
            answer = self.answers.get(number)
            if answer is None:
                continue
            values = dict(cell.values)
            rows = answer.rows or [{}]
            error = {"error": answer.error} if answer.error else {}
            found += [
                values | {k: v for k, v in row.items() if k not in values} | error for row in rows
            ]
        return found

    def _write_line(self, value: dict[str, Any]) -> None:
        assert self.path is not None
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(value) + "\n")

    def _read(self, path: Path) -> None:
        lines = _lines(path)
        try:
            head = msgspec.convert(lines[0], _Head)
            answers = msgspec.convert(lines[1:], list[Answer])
        except msgspec.ValidationError:
            raise _no_sweep(path) from None
        if head.weft_sweep != _FORMAT:
            raise _no_sweep(path)
        if head.fingerprint != self.sweep.fingerprint:
            raise UsageError(
                f"{path} holds the results of another sweep: {' '.join(head.words)}",
                "Remove it, or use another -o.",
            )
        self.answers |= {answer.number: answer for answer in answers}


class _Head(msgspec.Struct):
    weft_sweep: int
    fingerprint: str
    words: list[str]


def _no_sweep(path: Path) -> FormatError:
    return FormatError(f"{path} holds no results of a sweep", "Use another -o.")


def _lines(path: Path) -> list[dict[str, Any]]:
    """Read the lines of a file; one that was cut while it was written is cut off for good."""
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
