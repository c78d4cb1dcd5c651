"""Write tables as TOML text. The standard library reads TOML and does not write it."""

import json
import re
from collections.abc import Iterator
from typing import Any

from weft.hardware.quantity import Table

_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")


def to_toml(table: Table) -> str:
    """Write ``table`` with its plain values first, then its sections, ready for ``tomllib``."""
    return "\n".join(_section(table, ())) + "\n"


def _section(table: Table, path: tuple[str, ...]) -> Iterator[str]:
    for key, value in table.items():
        if not _is_section(value):
            yield f"{_key(key)} = {_value(value)}"
    for key, value in table.items():
        if _is_section(value):
            yield from _sections(value, (*path, key))


def _sections(value: Any, path: tuple[str, ...]) -> Iterator[str]:
    name = ".".join(_key(part) for part in path)
    for table in value if isinstance(value, list) else [value]:
        if isinstance(value, list) or not all(_is_section(each) for each in table.values()):
            yield ""
            yield f"[[{name}]]" if isinstance(value, list) else f"[{name}]"
        yield from _section(table, path)


def _is_section(value: Any) -> bool:
    """Distinguish a table of tables from a number with its source, which stands on one line."""
    if isinstance(value, list):
        return bool(value) and all(isinstance(each, dict) for each in value)
    return isinstance(value, dict) and "value" not in value


def _key(key: str) -> str:
    return key if _BARE_KEY.fullmatch(key) else _value(key)


def _value(value: Any) -> str:
    if isinstance(value, str):
        # JSON and TOML escape alike, except that TOML does not take a bare delete character.
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{_key(k)} = {_value(v)}" for k, v in value.items()) + " }"
    if isinstance(value, list):
        return "[" + ", ".join(_value(each) for each in value) + "]"
    return repr(value)
