"""The Schedule: which commands run, on which queue, in which order.

File formats and checks are imported on first use, because predicting needs neither.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from weft.schedule.accesses import READ, WRITE
from weft.schedule.ir import (
    Broadcast,
    Buffer,
    Call,
    Command,
    CommandKind,
    Copy,
    Cost,
    Decode,
    Encode,
    Flag,
    Kernel,
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
    queue_kind,
)
from weft.schedule.schedule import CommandLocation, Schedule
from weft.schedule.table import CommandTable, expand
from weft.schedule.values import SELF, Group, Index, Peer, Rel, Term, flipped, shifted

if TYPE_CHECKING:
    from weft.schedule.schedule_json import from_json, load, save, to_json

__all__ = [
    "READ",
    "SELF",
    "WRITE",
    "Broadcast",
    "Buffer",
    "Call",
    "Command",
    "CommandKind",
    "CommandLocation",
    "CommandTable",
    "Copy",
    "Cost",
    "Decode",
    "Encode",
    "Flag",
    "Group",
    "Index",
    "Kernel",
    "Launch",
    "Peer",
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
    "Term",
    "Wait",
    "expand",
    "flipped",
    "from_json",
    "load",
    "queue_kind",
    "save",
    "shifted",
    "to_json",
]

_FOUND_LATER = {
    "from_json": "weft.schedule.schedule_json",
    "load": "weft.schedule.schedule_json",
    "save": "weft.schedule.schedule_json",
    "to_json": "weft.schedule.schedule_json",
}


def __getattr__(name: str) -> Any:
    if name not in _FOUND_LATER:
        message = f"module 'weft.schedule' has no attribute {name!r}"
        raise AttributeError(message)
    return getattr(import_module(_FOUND_LATER[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_FOUND_LATER})
