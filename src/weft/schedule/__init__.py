"""The Schedule: what is done, on which queue, in which order. Its meaning is written here.

Files, and the checks of what they hold, are found when first used: pricing needs neither.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from weft.schedule.accesses import READ, WRITE
from weft.schedule.ir import (
    Broadcast,
    Buffer,
    Call,
    Command,
    Copy,
    Cost,
    Decode,
    Encode,
    Flag,
    Kernel,
    Kind,
    Launch,
    Program,
    Queue,
    Reduce,
    Repeat,
    Scope,
    Signal,
    Slice,
    Submit,
    Swap,
    Wait,
)
from weft.schedule.schedule import Place, Schedule
from weft.schedule.table import Table, write_out
from weft.schedule.values import SELF, Group, Index, Peer, Rel, Term, flipped, shifted

if TYPE_CHECKING:
    from weft.schedule.files import from_json, load, save, to_json

__all__ = [
    "READ",
    "SELF",
    "WRITE",
    "Broadcast",
    "Buffer",
    "Call",
    "Command",
    "Copy",
    "Cost",
    "Decode",
    "Encode",
    "Flag",
    "Group",
    "Index",
    "Kernel",
    "Kind",
    "Launch",
    "Peer",
    "Place",
    "Program",
    "Queue",
    "Reduce",
    "Rel",
    "Repeat",
    "Schedule",
    "Scope",
    "Signal",
    "Slice",
    "Submit",
    "Swap",
    "Table",
    "Term",
    "Wait",
    "flipped",
    "from_json",
    "load",
    "save",
    "shifted",
    "to_json",
    "write_out",
]

_FOUND_LATER = {
    "from_json": "weft.schedule.files",
    "load": "weft.schedule.files",
    "save": "weft.schedule.files",
    "to_json": "weft.schedule.files",
}


def __getattr__(name: str) -> Any:
    if name not in _FOUND_LATER:
        message = f"module 'weft.schedule' has no attribute {name!r}"
        raise AttributeError(message)
    return getattr(import_module(_FOUND_LATER[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_FOUND_LATER})
