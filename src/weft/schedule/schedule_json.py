"""Schedule files: versioned JSON, read and written.

A file holds the dataclasses of the IR field by field. Tuples are lists, a range is an object with
start, stop and step, a command has a ``kind``, and fields with their default value are omitted.
Allowed values are derived from the annotations, so a new command needs no code here. Files are
untrusted: reading any file ends quickly, in a Schedule or in a one-line error.
"""

from __future__ import annotations

import json
import operator
import reprlib
import sys
from collections.abc import Iterator
from dataclasses import MISSING, dataclass, fields, is_dataclass
from functools import lru_cache
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from weft.errors import FormatError, TooLargeError, WeftError, nearest
from weft.schedule.check import check as check_schedule
from weft.schedule.ir import Buffer, Command, Repeat
from weft.schedule.schedule import Schedule
from weft.schedule.values import Group, Peer, Term

VERSION = 1
MAX_RANKS = 1 << 20
MAX_QUEUES = 1 << 24  # summed over all ranks
MAX_FLAGS = 1 << 26  # summed over all ranks
MAX_NESTING = 64  # nested commands
MAX_NUMBER = 1 << 53  # larger integers lose precision in JSON readers that use doubles

_KINDS: dict[str, type] = {cls.__name__: cls for cls in (*get_args(Command), Repeat)}
_AT_LEAST = {
    (Schedule, "num_ranks"): 1,
    (Schedule, "num_flags"): 0,
    (Buffer, "nbytes"): 0,
    (Repeat, "count"): 0,
    (Group, "size"): 1,
    (Group, "stride"): 1,
    (Group, "ranks"): 0,
}


def save(schedule: Schedule, path: str | Path) -> None:
    """Write ``schedule`` to a file."""
    Path(path).write_text(to_json(schedule), encoding="utf-8")


def load(path: str | Path, *, check: bool = True) -> Schedule:
    """Read a schedule from a file, and check that it can be executed."""
    try:
        schedule = from_json(Path(path).read_text(encoding="utf-8"))
        if check:
            _check(schedule)
    except FileNotFoundError:
        raise FormatError(f"file not found: {path}.") from None
    except OSError as error:
        raise FormatError(f"cannot read {path}: {error.strerror}.") from error
    except UnicodeDecodeError as error:
        raise FormatError(f"cannot read {path}: byte {error.start} is not UTF-8.") from error
    except WeftError as error:
        raise type(error)(f"{path}: {error.message}", error.hint) from error
    return schedule


def _check(schedule: Schedule) -> None:
    try:
        check_schedule(schedule)
    except WeftError:
        raise
    except (ArithmeticError, LookupError, ValueError) as error:
        raise FormatError(
            f"schedule {schedule.name}: a peer, table or flag is out of range: {error}."
        ) from error


def to_json(schedule: Schedule) -> str:
    """Return the text of a schedule file, one line per field of the schedule."""
    whole = {"weft": "schedule", "version": VERSION, **_plain(schedule)}
    lines = (
        f"{json.dumps(key)}: {json.dumps(value, default=operator.index)}"
        for key, value in whole.items()
    )
    return "{\n" + ",\n".join(lines) + "\n}\n"


def _plain(value: Any) -> Any:
    """Convert dataclasses to JSON values."""
    if isinstance(value, range):
        return {"start": value.start, "stop": value.stop, "step": value.step}
    if isinstance(value, tuple):
        return [_plain(each) for each in value]
    if not is_dataclass(value):
        return value
    kind = type(value).__name__
    held = {each.name: (getattr(value, each.name), each.default) for each in fields(value)}
    plain = {name: _plain(mine) for name, (mine, default) in held.items() if mine != default}
    return {"kind": kind, **plain} if kind in _KINDS else plain


def from_json(text: str) -> Schedule:
    """Parse the text of a schedule file; a FormatError names the problem and its location."""
    try:
        whole = json.loads(text)
        _check_header(whole)
        body = {key: value for key, value in whole.items() if key not in ("weft", "version")}
        schedule: Schedule = _record(body, Schedule, _Place())
    except json.JSONDecodeError as error:
        raise _not_json(text, error) from error
    except RecursionError:
        raise _too_deep() from None
    except WeftError:
        raise
    except ValueError as error:  # an integer with thousands of digits
        raise FormatError(f"invalid JSON: {error}.") from error
    return schedule


def _not_json(text: str, error: json.JSONDecodeError) -> FormatError:
    at = f"line {error.lineno}, column {error.colno}"
    if error.msg.startswith("Unterminated") or error.pos >= len(text.rstrip()):
        size = len(text.encode(errors="replace"))
        return FormatError(
            f"the file is truncated: it ends after {size} bytes, inside a value that starts at "
            f"{at}.",
            "Write or copy it again.",
        )
    return FormatError(f"invalid JSON: {error.msg} at {at}.")


def _check_header(whole: Any) -> None:
    if not isinstance(whole, dict) or whole.get("weft") != "schedule":
        raise FormatError(
            "not a weft schedule.", 'A schedule file starts with {"weft": "schedule", "version": 1.'
        )
    place = _Place().at("version")
    if "version" not in whole:
        raise place.missing("a whole number")
    version = whole["version"]
    if type(version) is not int or version < 1:
        raise place.wrong(version, "a whole number from 1 on")
    if version > VERSION:
        raise FormatError(
            f"schedule version {version} is not supported (this weft reads up to version "
            f"{VERSION}).",
            "Upgrade weft, or write the file with this version.",
        )


@dataclass(frozen=True, slots=True)
class _Place:
    """The location of a value in the file, and the nesting depth of its command."""

    above: _Place | None = None
    key: str | int = ""
    nesting: int = 0

    def at(self, key: str | int) -> _Place:
        return _Place(self, key, self.nesting)

    def inside(self) -> _Place:
        return _Place(self.above, self.key, self.nesting + 1)

    def __str__(self) -> str:
        keys = list(self._keys())
        text = "".join(f"[{k}]" if isinstance(k, int) else f".{k}" for k in reversed(keys))
        return text.lstrip(".") or "the file"

    def _keys(self) -> Iterator[str | int]:
        place = self
        while place.above is not None:
            yield place.key
            place = place.above

    def wrong(self, value: Any, expected: str, hint: str = "") -> FormatError:
        return FormatError(f"{self} is {reprlib.repr(value)}: expected {expected}.", hint)

    def missing(self, expected: str) -> FormatError:
        return FormatError(f"{self} is missing: expected {expected}.")


def _too_deep() -> TooLargeError:
    return TooLargeError(f"commands are nested more than {MAX_NESTING} deep.")


@lru_cache(maxsize=64)
def _fields(cls: type) -> dict[str, tuple[Any, bool]]:
    """Return the fields of a dataclass: what each may hold, and whether it must be there."""
    hints = get_type_hints(cls, localns={"Schedule": Schedule})
    return {each.name: (hints[each.name], each.default is MISSING) for each in fields(cls)}


def _read(value: Any, kind: Any, place: _Place) -> Any:
    """Parse ``value`` as the annotation ``kind``."""
    origin = get_origin(kind)
    if origin in (Union, UnionType):
        return _one_of(value, get_args(kind), place)
    if origin is tuple:
        return _tuple(value, kind, place)
    if origin is Literal:
        if value not in get_args(kind):
            raise place.wrong(value, _described(kind))
        return value
    if kind is range:
        return _range(value, place)
    if is_dataclass(kind):
        return _record(value, kind, place)
    if not _fits(value, kind):
        raise place.wrong(value, _described(kind))
    return value


def _fits(value: Any, kind: Any) -> bool:
    """Return whether a JSON scalar has the expected type and a magnitude within the limits."""
    if kind is int:
        return type(value) is int and abs(value) <= MAX_NUMBER
    if kind is float:
        return type(value) in (int, float) and abs(value) <= sys.float_info.max
    if kind is str:
        return isinstance(value, str) and value.isprintable()
    return type(value) is kind


def _one_of(value: Any, kinds: tuple[Any, ...], place: _Place) -> Any:
    """Parse ``value`` as the member of ``kinds`` that has its shape."""
    classes = [kind for kind in kinds if is_dataclass(kind)]
    if isinstance(value, dict) and classes:
        one = classes[0] if len(classes) == 1 else _class_of(value, classes, place)
        return _record(value, one, place)
    for kind in kinds:
        shape = dict if kind is range else list if get_origin(kind) is tuple else kind
        if not is_dataclass(kind) and type(value) is shape:
            return _read(value, kind, place)
    raise place.wrong(value, " or ".join(dict.fromkeys(_described(kind) for kind in kinds)))


def _class_of(value: dict[str, Any], classes: list[Any], place: _Place) -> Any:
    """Return the class that the ``kind`` of an object names."""
    known = {cls.__name__: cls for cls in classes}
    if "kind" not in value:
        raise place.at("kind").missing(f"one of {', '.join(known)}")
    kind = value["kind"]
    if not isinstance(kind, str) or kind not in known:
        raise place.at("kind").wrong(
            kind, "a command that may stand here", nearest(str(kind), known)
        )
    return known[kind]


def _tuple(value: Any, kind: Any, place: _Place) -> tuple[Any, ...]:
    args = get_args(kind)
    if not isinstance(value, list):
        raise place.wrong(value, _described(kind))
    if args == (int, ...) and all(_fits(each, int) for each in value):
        return tuple(value)  # tables may be long
    if args[-1] is ...:
        return tuple(_read(each, args[0], place.at(i)) for i, each in enumerate(value))
    if len(value) != len(args):
        raise place.wrong(value, _described(kind))
    pairs = zip(value, args, strict=True)
    return tuple(_read(each, arg, place.at(i)) for i, (each, arg) in enumerate(pairs))


def _range(value: Any, place: _Place) -> range:
    keys = ("start", "stop", "step")
    if not isinstance(value, dict) or set(value) != set(keys):
        raise place.wrong(value, _described(range))
    start, stop, step = (_read(value[key], int, place.at(key)) for key in keys)
    if step == 0:
        raise place.at("step").wrong(step, "a step")
    return range(start, stop, step)


def _record(value: Any, cls: Any, place: _Place) -> Any:
    """Parse an object as a dataclass: all required fields and no unknown ones."""
    known = _fields(cls)
    if not isinstance(value, dict):
        raise place.wrong(value, _described(cls))
    if cls.__name__ in _KINDS:
        _class_of(value, [cls], place)
        place = place.inside()
        if place.nesting > MAX_NESTING:
            raise _too_deep()
        value = {key: held for key, held in value.items() if key != "kind"}
    for key in value:
        if key not in known:
            raise place.at(key).wrong(
                value[key], f"no such key in a {cls.__name__}", nearest(key, known)
            )
    for key, (kind, needed) in known.items():
        if needed and key not in value:
            raise place.at(key).missing(_described(kind))
    read = cls(**{key: _read(value[key], known[key][0], place.at(key)) for key in value})
    _check_numbers(read, place)
    return read


def _check_numbers(read: Any, place: _Place) -> None:
    """Raise on numbers that are invalid or too large to expand."""
    for (cls, key), least in _AT_LEAST.items():
        if isinstance(read, cls):
            held = getattr(read, key)
            for number in held if isinstance(held, tuple) else (held,):
                if number < least:
                    raise place.at(key).wrong(number, f"a whole number from {least} on")
    match read:
        case Schedule():
            _check_size(read, place)
        case Group() if max(read.size, read.stride, *read.ranks) > MAX_RANKS:
            raise TooLargeError(f"{place}: group of more than {MAX_RANKS:,} ranks.")
        case Term(index, _, table) if len(table) not in (0, index.group.size, index.group.size**2):
            size = index.group.size
            raise place.at("table").wrong(table, f"{size} or {size} x {size} numbers")
        case Peer(index, table) if table and len(table) != index.group.size:
            raise place.at("table").wrong(table, f"{index.group.size} positions")
        case _:
            pass


def _check_size(schedule: Schedule, place: _Place) -> None:
    n = schedule.num_ranks
    if n > MAX_RANKS:
        raise TooLargeError(f"{place.at('num_ranks')} is {n:,}, expected at most {MAX_RANKS:,}.")
    for number, program in enumerate(schedule.programs):
        if len(program.ranks) > n:
            where = place.at("programs").at(number).at("ranks")
            raise where.wrong(program.ranks, f"at most {n} ranks")
    for number, buffer in enumerate(schedule.buffers):
        if isinstance(buffer.nbytes, tuple) and len(buffer.nbytes) != n:
            where = place.at("buffers").at(number).at("nbytes")
            raise where.wrong(buffer.nbytes, f"a size for each of {n} ranks")
    queues = sum(len(program.ranks) * len(program.queues) for program in schedule.programs)
    flags = n * schedule.num_flags
    for what, size, limit in (("queues", queues, MAX_QUEUES), ("flags", flags, MAX_FLAGS)):
        if size > limit:
            raise TooLargeError(
                f"{place} has {size:,} {what} in total, expected at most {limit:,}."
            )


def _described(kind: Any) -> str:
    """Return a readable description of what an annotation allows."""
    plain: dict[Any, str] = {
        int: "a whole number",
        float: "a number",
        str: "a text of printable characters",
        bool: "true or false",
        NoneType: "null",
        range: "a range: start, stop and step",
    }
    if get_origin(kind) in (Union, UnionType):
        return " or ".join(dict.fromkeys(_described(each) for each in get_args(kind)))
    if get_origin(kind) is Literal:
        return f"one of {', '.join(get_args(kind))}"
    if get_origin(kind) is tuple:
        args = get_args(kind)
        return f"a list of {len(args)}" if args[-1] is not ... else "a list"
    if kind in plain:
        return plain[kind]
    return "a command" if kind.__name__ in _KINDS else f"a {kind.__name__}"
