"""Numbers with a source: how one table of a platform file becomes a record and back.

The type of a field says what kind of number it is; everything about reading, checking and writing
follows from that, so that adding a number to a device is one line.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, Field, dataclass, field, fields, is_dataclass
from typing import Annotated, Any, TypeVar

from weft.errors import PlatformError, WeftError, nearest
from weft.units import parse_rate, parse_size, parse_time

BASES = ("rated", "achieved", "fitted", "inherited", "derived", "given")
"""Where a number comes from: a datasheet; a measurement; a formula fitted to measurements; the
share that a sibling achieves of its own rating; arithmetic on other figures; or the user."""

Record = TypeVar("Record")
Table = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Source:
    """Why a number may be believed."""

    basis: str
    source: str


class OutOfRangeError(ValueError):
    """A number of the right kind that no machine has; the message says what one could have."""


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of number: how it is parsed, what is accepted, how a person would write it.

    Numbers lie between ``least`` and ``most``, or are zero where that means something. The limits
    are far beyond any machine, and so close that sums, quotients and arrays of what is derived
    from them stay exact enough, finite and small.
    """

    expected: str
    parse: Callable[[str], float] | None = None
    whole: bool = False
    zero: bool = False
    notations: tuple[tuple[str, float], ...] = ()
    least: float = 0.0
    most: float = 1e18

    def read(self, value: object) -> float:
        """Turn what a file holds into a number in base units, or raise ValueError."""
        if isinstance(value, str) and self.parse is not None:
            value = self.parse(value)
        number = _number_or_nan(value)
        if not 0 <= number < math.inf or (number == 0 and not self.zero):
            raise ValueError(value)
        if number and not self.least <= number <= self.most:
            limit = f"at least {self.least:g}" if number < self.least else f"at most {self.most:g}"
            raise OutOfRangeError(f"{self.expected}, {limit} {self.unit}".rstrip())
        if self.whole and number != int(number):
            raise ValueError(value)
        return int(number) if self.whole else float(number)

    @property
    def unit(self) -> str:
        """The unit in which numbers are kept, "" for counts."""
        units: dict[object, str] = {parse_rate: "B/s", parse_size: "bytes", parse_time: "s"}
        return units.get(self.parse, "")

    def write(self, value: float) -> str | float:
        """Write a number as a person would, provided that reading it gives the same bits."""
        if self.parse is None:
            return value
        readable = [(u, factor) for u, factor in self.notations if 1e-3 <= value / factor < 1e6]
        texts = [f"{value / factor:.12g}{unit}" for unit, factor in readable]
        same = [text for text in texts if self.parse(text) == value]
        return min(same, key=len, default=value)


class SourcedNumbers:
    """Writes numbers with their source, in the form of a platform file."""

    def __init__(self, source: str, *, digits: int = 4) -> None:
        self.source, self._digits = source, digits

    def achieved(self, value: float, what: str) -> Table:
        """Return a measured number, rounded to significant digits."""
        return self._number(float(f"{value:.{self._digits}g}"), what, "achieved")

    def derived(self, value: float, what: str) -> Table:
        """Return a number computed from measured ones, rounded to significant digits."""
        return self._number(float(f"{value:.{self._digits}g}"), what, "derived")

    def count(self, value: int, what: str) -> Table:
        """Return a whole number as it is."""
        return self._number(value, what, "achieved")

    def _number(self, value: float, what: str, basis: str) -> Table:
        return {"value": value, "basis": basis, "source": f"{what}, {self.source}"}


def _number_or_nan(value: object) -> float:
    """Take numbers only: ``true`` is an int to Python, and not to us."""
    return value if isinstance(value, int | float) and not isinstance(value, bool) else math.nan


RATE = Kind(
    'a positive rate such as "48GB/s"',
    parse_rate,
    notations=(("GB/s", 1e9), ("MB/s", 1e6)),
    least=1e-3,
)
TIME = Kind(
    'a time of zero or more such as "936ns"',
    parse_time,
    zero=True,
    notations=(("s", 1.0), ("ms", 1e-3), ("us", 1e-6), ("ns", 1e-9)),
    most=1e6,
)
SIZE = Kind(
    'a positive size such as "192GiB"',
    parse_size,
    whole=True,
    notations=(("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10), ("GB", 10**9)),
)
COUNT = Kind("a whole number from 1 up", whole=True, most=2**31 - 1)
FEW = Kind("a whole number from 1 up", whole=True, most=2**16)  # of what there are arrays

Count = Annotated[int, COUNT]
Few = Annotated[int, FEW]
Bytes = Annotated[int, SIZE]
Rate = Annotated[float, RATE]
RatedRate = Annotated[float | None, RATE]
Seconds = Annotated[float, TIME]
Number = Annotated[float, Kind("a number of zero or more", zero=True)]
FewOrNone = Annotated[int | None, FEW]
FlopRate = Annotated[
    float, Kind("a positive number of flop/s such as 1307e12", least=1.0, most=1e24)
]
Watts = Annotated[float, Kind("watts as a number of zero or more", zero=True, most=1e9)]
JoulesPerByte = Annotated[
    float, Kind("joules per byte as a number of zero or more", zero=True, most=1e3)
]


def unwritten() -> Any:
    """Declare a mapping that is kept with a record and not written with it."""
    return field(default_factory=dict, hash=False, repr=False, metadata={"unwritten": True})


def kind_of(each: "Field[Any]") -> Kind | None:
    """Return what kind of number a field holds, if it holds one."""
    kind = getattr(each.type, "__metadata__", (None,))[0]
    return kind if isinstance(kind, Kind) else None


def written_fields(record: Any) -> "list[Field[Any]]":
    """List the fields of a record, or of its class, that stand in a file."""
    return [each for each in fields(record) if "unwritten" not in each.metadata]


@dataclass(frozen=True, slots=True)
class Place:
    """Where in which file we are reading, for errors that can be acted upon."""

    file: str
    key: str = ""

    def at(self, key: str | int) -> "Place":
        """Return the place of ``key`` inside this one."""
        return Place(self.file, f"{self.key}.{key}" if self.key else str(key))

    def wrong(self, value: object, expected: str, hint: str = "") -> PlatformError:
        """Return an error that names the key, its value and what was expected."""
        message = f"{self.file}: {self.key} = {_shown(value)}: expected {expected}"
        return PlatformError(message, hint)

    def missing(self, expected: str) -> PlatformError:
        """Return an error for a missing key."""
        return PlatformError(
            f"{self.file}: {self.key} is missing: expected {expected}",
            'Add it, or take over what the file does not state: extends = "h100-8" at its top, or '
            'extends = "h100" under [device].',
        )


def _shown(value: object) -> str:
    """Write a value as it stands in a file, cut to a readable length."""
    shown = f'"{value}"' if isinstance(value, str) else str(value)
    shown = {"True": "true", "False": "false"}.get(shown, shown)
    return shown if len(shown) <= 60 else shown[:57] + "..."


class Reader:
    """Reads the tables of one file and remembers where each number came from."""

    def __init__(self, file: str) -> None:
        self.root = Place(file)
        self.sources: dict[str, Source] = {}

    def record(self, cls: type[Record], table: object, place: Place, **parts: Any) -> Record:
        """Read ``table`` into ``cls``; ``parts`` are its fields that are records themselves."""
        table = self.table(table, place, [each.name for each in written_fields(cls)])
        for each in written_fields(cls):
            if each.name not in parts:
                parts[each.name] = self._field(each, table, place.at(each.name))
        return cls(**parts)

    def table(self, table: object, place: Place, known: list[str]) -> Table:
        """Raise if a table has an unknown key."""
        if not isinstance(table, dict):
            raise place.wrong(table, "a table")
        for key in table:
            if key not in known:
                message = f"{place.file}: {place.at(key).key} is not a known key"
                raise PlatformError(message, nearest(key, known))
        return table

    def _field(self, each: "Field[Any]", table: Table, place: Place) -> Any:
        kind = kind_of(each)
        if each.name not in table:
            if each.default is MISSING:
                raise place.missing(kind.expected if kind else "a string")
            return each.default
        value = table[each.name]
        if isinstance(each.default, tuple):
            return self.names(value, place)
        return self.number(kind, value, place) if kind else self.words(value, place)

    def count(self, value: object, place: Place, expected: str = COUNT.expected) -> int:
        """Read a whole number that is part of the shape, not a figure with a source."""
        try:
            return int(COUNT.read(value))
        except OutOfRangeError as error:
            raise place.wrong(value, str(error)) from error
        except ValueError as error:
            raise place.wrong(value, expected) from error

    def words(self, value: object, place: Place) -> str:
        """Read a string."""
        if not isinstance(value, str):
            raise place.wrong(value, "a string")
        return value

    def names(self, value: object, place: Place) -> tuple[str, ...]:
        """Read a list of names."""
        if not isinstance(value, list):
            raise place.wrong(value, "a list of names")
        return tuple(self.words(each, place.at(number)) for number, each in enumerate(value))

    def number(self, kind: Kind, entry: object, place: Place) -> float:
        """Read a number, bare or as ``{ value, basis, source }``, and keep its source."""
        if isinstance(entry, dict):
            entry = self.table(entry, place, ["value", "basis", "source"])
            if "value" not in entry:
                raise place.at("value").missing(kind.expected)
            value, source = entry["value"], self._source(entry, place)
        else:
            value, source = entry, Source("given", place.file)
        try:
            number = kind.read(value)
        except OutOfRangeError as error:
            raise place.wrong(value, str(error)) from error
        except (ValueError, WeftError) as error:
            raise place.wrong(value, kind.expected) from error
        self.sources[place.key] = source
        return number

    def _source(self, entry: Table, place: Place) -> Source:
        basis = self.words(entry.get("basis", "given"), place.at("basis"))
        if basis not in BASES:
            raise place.at("basis").wrong(basis, f"one of {', '.join(BASES)}")
        source = self.words(entry.get("source", place.file), place.at("source"))
        return Source(basis, source)


def to_table(record: Any, sources: Mapping[str, Source], key: str = "") -> Table:
    """Turn a record back into the table it could have been read from."""
    return dict(_items(record, sources, key))


def _items(record: Any, sources: Mapping[str, Source], key: str) -> Iterator[tuple[str, Any]]:
    for each in written_fields(record):
        value, kind = getattr(record, each.name), kind_of(each)
        place = f"{key}.{each.name}" if key else each.name
        if value is None or (value == each.default and place not in sources):
            continue
        if kind:
            yield each.name, _entry(kind.write(value), sources.get(place))
        else:
            yield each.name, _to_builtins(value, sources, place)


def _to_builtins(value: Any, sources: Mapping[str, Source], key: str) -> Any:
    """Write what is not a number with a source: words, and records one level down."""
    if isinstance(value, tuple):
        return [_to_builtins(each, sources, f"{key}.{i}") for i, each in enumerate(value)]
    if isinstance(value, Mapping):
        return {name: _to_builtins(each, sources, f"{key}.{name}") for name, each in value.items()}
    return to_table(value, sources, key) if is_dataclass(value) else value


def _entry(value: str | float, source: Source | None) -> Any:
    if source is None:
        return value
    return {"value": value, "basis": source.basis, "source": source.source}
