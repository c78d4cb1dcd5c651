"""Kineto: what PyTorch's profiler writes (``export_chrome_trace``), of any year and vendor.

Times are microseconds, whole in old files and with nanoseconds behind the point in new ones;
``baseTimeNanoseconds`` of newer files says where they count from. Files of 2021 capitalise their
categories. The text is read by the native scanner, which forgives what the profiler got wrong.
"""

import re
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from weft import _core
from weft.errors import FormatError
from weft.trace.pieces import Pieces
from weft.trace.trace import Columns, Kind, Trace, left_out, possible_times, whole_number
from weft.units import file_name

# Lower case: files of 2021 capitalise, and call operators, calls and copies by other names.
_KINDS = {
    "kernel": Kind.KERNEL,
    "gpu_memcpy": Kind.COPY,
    "memcpy": Kind.COPY,
    "gpu_memset": Kind.SET,
    "memset": Kind.SET,
    "cuda_runtime": Kind.RUNTIME,
    "cuda_driver": Kind.RUNTIME,
    "hip_runtime": Kind.RUNTIME,
    "runtime": Kind.RUNTIME,
    "privateuse1_runtime": Kind.RUNTIME,
    "xpu_runtime": Kind.RUNTIME,
    "cpu_op": Kind.OP,
    "operator": Kind.OP,
    "user_annotation": Kind.ANNOTATION,
    "gpu_user_annotation": Kind.GPU_ANNOTATION,
    "python_function": Kind.PYTHON,
    "python": Kind.PYTHON,
    "cuda_sync": Kind.SYNC,
    "synchronization": Kind.SYNC,
}


def read_kineto(path: Path | str) -> Trace:
    """Read one file, plain or packed, cut or damaged, as far as it goes."""
    pieces = Pieces(Path(path))
    scanner = _core.TraceScanner()
    for piece in pieces:
        scanner.feed(piece)
    is_whole = scanner.finish()
    if not scanner.found_events:
        raise FormatError(
            f"{str(path)!r} is no trace of PyTorch's profiler: it has no list traceEvents"
            + (f"; {pieces.lost}" if pieces.lost else ""),
            "Write one with torch.profiler: prof.export_chrome_trace('trace.json.gz').",
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


def _columns(scanner: _core.TraceScanner) -> tuple[Columns, int, list[str]]:
    """Give the columns, the time at which they begin, and what was left out of them."""
    raw = scanner.columns()
    if scanner.has_nano:
        raw["duration_ns"] //= 1000  # it was taken for microseconds
    possible = possible_times(raw["start_ns"] * 1e-9, raw["duration_ns"] * 1e-9)
    if not possible.all():
        raw = {key: column[possible] for key, column in raw.items()}
    start_ns, duration_ns = raw.pop("start_ns"), raw.pop("duration_ns")
    kinds = [_KINDS.get(text.lower(), Kind.OTHER) for text in _texts(scanner.categories())]
    category = raw.pop("category")
    kind = np.array([*kinds, Kind.OTHER], np.int8)[category]
    origin = int(start_ns[kind <= Kind.PYTHON].min(initial=2**62))
    origin = 0 if origin == 2**62 else origin
    columns = Columns(
        kind=kind, start=(start_ns - origin) * 1e-9, duration=duration_ns * 1e-9, **raw
    )
    return columns, origin, left_out(possible)


def _texts(raw: list[bytes]) -> tuple[str, ...]:
    return tuple(_text(each) for each in raw)


def _text(raw: bytes) -> str:
    """Undo the escapes of a string; where they make no sense, leave it as it stands."""
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
    """Read what stands beside the events."""
    rest = scanner.rest()
    if not rest:
        return {}
    try:
        return _dict(msgspec.json.decode(rest + b"}"))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return {}


def _device(about: dict[str, Any], columns: Columns) -> dict[str, Any]:
    """Give the properties of the device that the GPU events ran on."""
    devices = about.get("deviceProperties")
    if not isinstance(devices, list) or not devices:
        return {}
    used = columns.device[(columns.kind <= Kind.SET) & (columns.device >= 0)]
    ids, counts = np.unique(used, return_counts=True)
    number = int(ids[counts.argmax()]) if len(ids) else 0
    found = [each for each in map(_dict, devices) if whole_number(each.get("id")) == number]
    return (found or [_dict(devices[0])])[0]


def _rank(distributed: dict[str, Any], file: str) -> int | None:
    """Take the rank from the file; old profilers wrote none, so from its name."""
    known = whole_number(distributed.get("rank"))
    named = re.search(r"rank[-_.]?(\d{1,6})", file, re.IGNORECASE)
    return int(named[1]) if known is None and named else known


def _losses(scanner: _core.TraceScanner, lost: str, *, is_whole: bool) -> list[str]:
    """Say in sentences what of the file is not in the trace."""
    found = scanner.losses()
    kept = f"{scanner.num_events} complete events were kept"
    out = [f"{lost}: {kept}"] if lost else []
    if found["num_bad"] and not (lost and found["num_bad"] == 1):
        out.append(
            f"invalid JSON at byte {found['first_byte']}: {found['num_bytes']} bytes in "
            f"{found['num_bad']} place{'s' * (found['num_bad'] > 1)} were skipped, {kept}"
        )
    elif not is_whole and not lost:
        out.append(f"the file ends before its list of events does: {kept}")
    if found["gave_up"]:
        out.append("the rest was not read: too little of it is JSON")
    if found["num_untimed"]:
        out.append(f"{found['num_untimed']} events have no time and were left out")
    if found["num_unpaired"]:
        out.append(
            f"{found['num_unpaired']} begin and end events were left out: weft reads complete ones"
        )
    return out


def _dict(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _number(value: Any) -> float:
    return value if isinstance(value, int | float) and not isinstance(value, bool) else 0
