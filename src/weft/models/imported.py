"""What importers share: the model they return, and reading keys so that none is lost."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from weft.errors import FormatError, UsageError
from weft.models.transformer import Transformer

_LARGEST = 2**53  # what a float counts exactly
_MOST_VALUES = 100_000  # of a YAML file with its aliases written out; whole jobs have some hundred


@dataclass(frozen=True, slots=True)
class Imported:
    """A model and its layout as another program's file describes them.

    ``notes`` name what the file asks for and the model leaves out or assumes, ``stack`` is the
    software that the file is for, where one is known.
    """

    name: str
    model: Transformer
    notes: tuple[str, ...] = ()
    stack: str = ""


@dataclass
class Keys:
    """The keys of a document; what nobody asks for is left over.

    ``where`` names the document in errors.
    """

    values: Mapping[str, Any]
    where: str
    used: set[str] = field(default_factory=set)

    def get(self, key: str, default: Any = None) -> Any:
        """Return a value, or ``default`` where it is missing or null."""
        self.used.add(key)
        value = self.values.get(key)
        return default if value is None else value

    def or_else(self, **usual: Any) -> Keys:
        """Return the same keys with values for those that are missing or null."""
        known = {key: value for key, value in self.values.items() if value is not None}
        return Keys({**self.values, **usual, **known}, self.where, self.used)

    def whole(self, key: str, default: int | None = None) -> int:
        """Return a whole number of zero or more; without a default it must be there."""
        number = self.integer(key, default)
        if number < 0:
            raise FormatError(f"{self.where}: {key} must be a whole number (got {number})")
        return number

    def integer(self, key: str, default: int | None = None) -> int:
        """Return a whole number, which may be negative; without a default it must be there."""
        value = self.get(key, default)
        if value is None:
            raise FormatError(f"{self.where}: {key} is missing", "Add it to the file.")
        try:
            number = int(value)
            exact = number == float(value) and abs(number) <= _LARGEST
        except (TypeError, ValueError, OverflowError):
            number, exact = 0, False
        if isinstance(value, bool) or not exact:
            raise FormatError(f"{self.where}: {key} must be a whole number (got {value!r:.40})")
        return number

    def real(self, key: str, default: float) -> float:
        """Return a number."""
        try:
            number = float(self.get(key, default))
        except (TypeError, ValueError, OverflowError):
            number = math.nan
        if not abs(number) <= _LARGEST:  # nor NaN
            raise FormatError(
                f"{self.where}: {key} must be a number (got {self.values[key]!r:.40})"
            )
        return number

    def truth(self, key: str, *, default: bool = False) -> bool:
        """Return a truth value, also where it is written as a word."""
        value = self.get(key, default)
        if isinstance(value, str) and value.lower() in ("true", "false"):
            return value.lower() == "true"
        if not isinstance(value, bool | int):
            raise FormatError(f"{self.where}: {key} must be true or false (got {value!r})")
        return bool(value)

    def table(self, key: str) -> Keys:
        """Return a table inside, empty where there is none."""
        value = self.get(key, {})
        if not isinstance(value, Mapping):
            raise FormatError(f"{self.where}: {key} must be a table (got {value!r})")
        return Keys(value, f"{self.where}, {key}")

    def unread(self, harmless: Collection[str] = (), prefixes: tuple[str, ...] = ()) -> list[str]:
        """Return the keys that nobody asked for and that may change the step.

        Keys without a value, or that are switched off, change nothing.
        """
        return sorted(
            str(key)
            for key, value in self.values.items()
            if key not in self.used
            and key not in harmless
            and not str(key).startswith(prefixes)
            and value not in (None, False, "", "none", 0, 0.0, [], {})
        )


def not_understood(where: str, keys: list[str]) -> tuple[str, ...]:
    """Return a note that names keys of a file that no part of the model stands for."""
    return (f"{where}: not understood and left out: {', '.join(keys)}",) if keys else ()


def read_text(path: Path) -> str:
    """Read a text file."""
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is no UTF-8 text"
        raise FormatError(f"cannot read {path}: {reason}") from error


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON file that holds an object."""
    try:
        found = msgspec.json.decode(read_text(path).encode())
    except (msgspec.MsgspecError, RecursionError) as error:
        raise FormatError(f"{path} is not JSON: {error}") from error
    if not isinstance(found, dict):
        raise FormatError(f"{path}: expected an object")
    return found


def read_yaml(path: Path) -> dict[str, Any]:
    """Read a YAML file that holds a mapping."""
    try:
        import yaml  # type: ignore[import-untyped]
    except ModuleNotFoundError as error:
        raise UsageError(
            f"{path}: reading YAML needs PyYAML, which is not installed",
            "Use pip install pyyaml, or write the settings as TOML.",
        ) from error
    try:
        found = yaml.safe_load(read_text(path))
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise FormatError(f"{path} is not YAML: {str(error).splitlines()[0]}") from error
    if not isinstance(found, dict):
        raise FormatError(f"{path}: expected a mapping")
    if _num_values(found) > _MOST_VALUES:
        raise FormatError(
            f"{path}: more than {_MOST_VALUES:,} values, aliases written out",
            "Use fewer aliases (*name), and none inside of what it stands for.",
        )
    return found


def _num_values(document: Any) -> int:
    """Count values as often as aliases repeat them, up to just above ``_MOST_VALUES``."""
    count, left = 0, [document]
    while left and count <= _MOST_VALUES:
        each = left.pop()
        count += 1
        if isinstance(each, Mapping):
            left += each.values()
        elif isinstance(each, list | tuple | set):
            left += each
    return count
