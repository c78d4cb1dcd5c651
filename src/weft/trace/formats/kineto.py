"""Kineto: traces of PyTorch's profiler (``export_chrome_trace``), of any version and vendor.

Times are in microseconds, integers in old files and with nanosecond fractions in new ones;
``baseTimeNanoseconds`` of newer files is their origin. Files of 2021 capitalize their categories.
The text is parsed by the native scanner, which tolerates known errors of the profiler.
"""

import json
import re
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from weft import _core
from weft.errors import FormatError
from weft.trace.formats.file_pieces import FilePieces
from weft.trace.trace import (
    EventKind,
    Trace,
    TraceColumns,
    possible_times,
    skipped_note,
    whole_number,
)
from weft.units import file_name

# Lower case: files of 2021 capitalize, and name operators, calls and copies differently.
_KINDS = {
    "kernel": EventKind.KERNEL,
    "gpu_memcpy": EventKind.COPY,
    "memcpy": EventKind.COPY,
    "gpu_memset": EventKind.SET,
    "memset": EventKind.SET,
    "cuda_runtime": EventKind.RUNTIME,
    "cuda_driver": EventKind.RUNTIME,
    "hip_runtime": EventKind.RUNTIME,
    "runtime": EventKind.RUNTIME,
    "privateuse1_runtime": EventKind.RUNTIME,
    "xpu_runtime": EventKind.RUNTIME,
    "cpu_op": EventKind.OP,
    "operator": EventKind.OP,
    "user_annotation": EventKind.ANNOTATION,
    "gpu_user_annotation": EventKind.GPU_ANNOTATION,
    "python_function": EventKind.PYTHON,
    "python": EventKind.PYTHON,
    "cuda_sync": EventKind.SYNC,
    "synchronization": EventKind.SYNC,
}
_UNFINISHED = "the file ends before its list of events does (is it still being written?): "


_SMALL = 1 << 20  # bytes: a file without events that is longer is not parsed to find its error


def read_kineto(path: Path | str) -> Trace:
    """Read one file, compressed or not, truncated or damaged, as far as possible."""
    pieces = FilePieces(Path(path))
    scanner = _core.TraceScanner()
    for piece in pieces:
        scanner.feed(piece)
    is_whole = scanner.finish()
    if not scanner.found_events:
        _require_json(Path(path))
        raise FormatError(
            f"{str(path)!r} is not a trace of PyTorch's profiler: it has no traceEvents"
            + (f"; {pieces.lost}" if pieces.lost else ""),
            "Write one with torch.profiler: prof.export_chrome_trace('trace.json.gz'). If it is a "
            "configuration, it must be a JSON object with a model_type.",
        )
    about = _about(scanner)
    columns, origin_ns, impossible = _columns(scanner)
    distributed = _dict(about.get("distributedInfo"))
    device = _device(about, columns)
    return Trace(
        path=file_name(path),
        columns=columns,
        names=_texts(scanner.names()),
        threads=tuple(_thread(text) for text in _texts(scanner.threads())),
        details=tuple(each + b"}" for each in scanner.details()),
        num_events=scanner.num_events,
        origin_ns=origin_ns + int(_number(about.get("baseTimeNanoseconds"))),
        rank=_rank(distributed, Path(path).name),
        world_size=whole_number(distributed.get("world_size")),
        device=str(device.get("name", "")),
        num_units=whole_number(device.get("numSms")),
        about=about,
        losses=(*_losses(scanner, pieces.lost, is_whole=is_whole), *impossible),
    )


def _require_json(path: Path) -> None:
    """Raise for a short file that is neither a trace nor JSON: a configuration with an error."""
    if path.suffix != ".json" or path.stat().st_size > _SMALL:
        return
    try:
        json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise FormatError(
            f"{str(path)!r} is not valid JSON: {error} "
            "(expected the configuration of a model, a workload or a trace)",
            "Correct the file there; if it is cut off, save it again.",
        ) from error


def _columns(scanner: _core.TraceScanner) -> tuple[TraceColumns, int, list[str]]:
    """Return the columns, the time of their origin, and notes on skipped events."""
    raw = scanner.columns()
    if scanner.has_nano:
        raw["duration_ns"] //= 1000  # it was read as microseconds
    possible = possible_times(raw["start_ns"] * 1e-9, raw["duration_ns"] * 1e-9)
    if not possible.all():
        raw = {key: column[possible] for key, column in raw.items()}
    start_ns, duration_ns = raw.pop("start_ns"), raw.pop("duration_ns")
    kinds = [_KINDS.get(text.lower(), EventKind.OTHER) for text in _texts(scanner.categories())]
    category = raw.pop("category")
    kind = np.array([*kinds, EventKind.OTHER], np.int8)[category]
    origin = int(start_ns[kind <= EventKind.PYTHON].min(initial=2**62))
    origin = 0 if origin == 2**62 else origin
    columns = TraceColumns(
        kind=kind, start=(start_ns - origin) * 1e-9, duration=duration_ns * 1e-9, **raw
    )
    return columns, origin, skipped_note(possible)


def _texts(raw: list[bytes]) -> tuple[str, ...]:
    return tuple(_text(each) for each in raw)


def _text(raw: bytes) -> str:
    """Unescape a string; invalid escapes are left unchanged."""
    if b"\\" in raw:
        try:
            return msgspec.json.decode(b'"' + raw + b'"', type=str)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            pass
    return raw.decode(errors="replace")


def _thread(text: str) -> tuple[str, str]:
    pid, _, tid = text.partition("\n")
    return pid, tid


def _about(scanner: _core.TraceScanner) -> dict[str, Any]:
    """Parse the metadata besides the events."""
    rest = scanner.rest()
    if not rest:
        return {}
    try:
        return _dict(msgspec.json.decode(rest + b"}"))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return {}


def _device(about: dict[str, Any], columns: TraceColumns) -> dict[str, Any]:
    """Return the properties of the device that the GPU events ran on."""
    devices = about.get("deviceProperties")
    if not isinstance(devices, list) or not devices:
        return {}
    used = columns.device[(columns.kind <= EventKind.SET) & (columns.device >= 0)]
    ids, counts = np.unique(used, return_counts=True)
    number = int(ids[counts.argmax()]) if len(ids) else 0
    found = [each for each in map(_dict, devices) if whole_number(each.get("id")) == number]
    return (found or [_dict(devices[0])])[0]


def _rank(distributed: dict[str, Any], file: str) -> int | None:
    """Return the rank from the file; old profilers wrote none, so from its name."""
    known = whole_number(distributed.get("rank"))
    return named_rank(file) if known is None else known


def named_rank(file: str) -> int | None:
    """Return the rank in the name of a file, or None.

    >>> named_rank("rank-3.json"), named_rank("worker0.pt.trace.json")
    (3, None)
    """
    named = re.search(r"rank[-_.]?(\d{1,6})", file, re.IGNORECASE)
    return int(named[1]) if named else None


def _losses(scanner: _core.TraceScanner, lost: str, *, is_whole: bool) -> list[str]:
    """Return notes on what is missing from the trace."""
    found = scanner.losses()
    kept = f"{scanner.num_events} complete events were kept"
    out = [f"{lost}: {kept}"] if lost else []
    if found["num_bad"] == 1 and not is_whole and not lost:  # one event that is cut
        out.append(_UNFINISHED + kept)
    elif found["num_bad"] and not (lost and found["num_bad"] == 1):
        out.append(
            f"invalid JSON at byte {found['first_byte']}: {found['num_bytes']} bytes in "
            f"{found['num_bad']} place{'s' * (found['num_bad'] > 1)} were skipped, {kept}"
        )
    elif not is_whole and not lost:
        out.append(_UNFINISHED + kept)
    if found["gave_up"]:
        out.append("the rest was not read: too little of it is JSON")
    if found["num_untimed"]:
        out.append(f"skipped {found['num_untimed']} events without a timestamp")
    if found["num_unpaired"]:
        out.append(
            f"skipped {found['num_unpaired']} begin and end events (weft reads complete events)"
        )
    return out


def _dict(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _number(value: Any) -> float:
    return value if isinstance(value, int | float) and not isinstance(value, bool) else 0
