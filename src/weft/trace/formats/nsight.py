"""Nsight Systems: SQLite files of ``nsys export --type sqlite report.nsys-rep``.

Tables and columns come and go between versions (export schemas of 2022 to 2026), and a table exists
only if the report has such events. So every column is looked up before it is asked for. Times are
nanoseconds from the start of the session.

| table | becomes |
|---|---|
| CUPTI_ACTIVITY_KIND_KERNEL, _MEMCPY, _MEMSET | kernels, copies, sets |
| CUPTI_ACTIVITY_KIND_GRAPH_TRACE | a kernel: a whole CUDA graph, if its nodes were not traced |
| CUPTI_ACTIVITY_KIND_RUNTIME | calls of the runtime; they launch the above by correlationId |
| NVTX_EVENTS | ranges; ``aten::mm, seq = 1, sizes = [..]`` of torch's emit_nvtx are operators, |
| | those named like ``step 12`` or ``iteration_12`` are steps, those of NCCL are collectives |
"""

import json
import re
import sqlite3
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from weft.errors import FormatError
from weft.trace.formats.kineto import named_rank
from weft.trace.trace import EventKind, Trace, TraceEvent, trace_of_events, whole_number
from weft.units import file_name

SQLITE = b"SQLite format 3\0"
_KERNELS, _COPIES = "CUPTI_ACTIVITY_KIND_KERNEL", "CUPTI_ACTIVITY_KIND_MEMCPY"
_SETS, _GRAPHS = "CUPTI_ACTIVITY_KIND_MEMSET", "CUPTI_ACTIVITY_KIND_GRAPH_TRACE"
_CALLS, _RANGES = "CUPTI_ACTIVITY_KIND_RUNTIME", "NVTX_EVENTS"
_RANGE_TYPES = (None, 59, 60)  # eventType of push/pop and start/end; others are marks and names
_COPY_KINDS = {1: "HtoD", 2: "DtoH", 8: "DtoD", 9: "HtoH", 10: "PtoP"}  # of CUPTI
_THREAD = (1 << 24) - 1  # the low bits of a globalTid are the thread, the rest its process
_STEP = re.compile(
    r"(?:profiler|train(?:ing)?)?[ _]?(?:step|iter(?:ation)?)[ _#:=]*(\d+)", re.IGNORECASE
)
_OPERATOR = re.compile(r"([A-Za-z_]\w*::[\w.]+)\b(?:.*?\bsizes = (\[.*\]))?")
_API_VERSION = re.compile(r"_v\d+$")  # cudaLaunchKernel_v7000
_NCCL_CALL = re.compile(r"nccl(?=AllReduce|AllGather|ReduceScatter|Reduce|Broadcast|Send|Recv)")
_GROUP, _SIZE = "NCCL communicator ID", "No. of ranks"  # keys of payloads
_LARGEST = 1 << 62  # of a column
_Event = tuple[int, TraceEvent]  # with the process that it is of


def read_nsight(path: Path | str) -> list[Trace]:
    """Read an export: one trace per process with GPU events, in the order of their devices.

    Nsight Systems does not record ranks. Processes of one report are numbered by their device, as
    torchrun does on one node; the rank of a single process is taken from the name of the file.
    """
    try:
        with closing(
            sqlite3.connect(f"{Path(path).absolute().as_uri()}?mode=ro", uri=True)
        ) as base:
            return _traces(_Export(base, path))
    except sqlite3.Error as error:
        raise FormatError(
            f"cannot read {str(path)!r} as SQLite: {error}",
            "Export the report again: nsys export --type sqlite report.nsys-rep",
        ) from None


class _Export:
    """An open export: the columns that it has, and its strings."""

    def __init__(self, base: sqlite3.Connection, path: Path | str) -> None:
        self.base, self.path = base, path
        base.text_factory = lambda raw: raw.decode(errors="replace")
        tables = base.execute("SELECT name FROM sqlite_master WHERE type IN ('table', 'view')")
        self.columns = {
            name: {row[1] for row in base.execute(f"PRAGMA table_info({_quoted(name)})")}
            for (name,) in tables.fetchall()
        }
        if not {_KERNELS, _COPIES, _GRAPHS, _CALLS, _RANGES} & self.columns.keys():
            raise FormatError(
                f"{str(path)!r} is an SQLite file, but no export of Nsight Systems: it has none of "
                f"the tables {_KERNELS}, {_CALLS}, {_RANGES}",
                "Write one with nsys export --type sqlite report.nsys-rep",
            )
        self.strings = dict(self.rows("StringIds", "id", "value"))
        self.sizes = _group_sizes(data for (data,) in self.rows(_RANGES, "jsonText"))

    def rows(self, table: str, *columns: str) -> Iterator[tuple[Any, ...]]:
        """Yield columns of a table; those that it does not have are None."""
        have = self.columns.get(table, set())
        if not have:
            return iter(())
        asked = ", ".join(_quoted(name) if name in have else "NULL" for name in columns)
        return self.base.execute(f"SELECT {asked} FROM {_quoted(table)}")  # noqa: S608 - quoted

    def text(self, value: Any) -> str:
        """Return a name: the id of a string, or in some tables the text itself."""
        found = value if isinstance(value, str) else self.strings.get(value, "")
        return found if isinstance(found, str) else ""

    def events(self) -> Iterator[_Event]:
        """Yield all events; rows without times are left out."""
        where = ("start", "end", "globalPid", "deviceId", "streamId", "correlationId")
        for *at, demangled, short, plain in self.rows(
            _KERNELS, *where, "demangledName", "shortName", "name"
        ):
            name = self.text(demangled) or self.text(short) or self.text(plain) or "kernel"
            yield from _on_device(EventKind.KERNEL, name, at)
        for *at, graph in self.rows(_GRAPHS, *where, "graphId"):
            yield from _on_device(EventKind.KERNEL, f"CUDA graph {graph}", at)
        for *at, kind, nbytes in self.rows(_COPIES, *where, "copyKind", "bytes"):
            name = f"Memcpy {_COPY_KINDS.get(kind, 'other')}"
            yield from _on_device(EventKind.COPY, name, at, nbytes)
        for *at, nbytes in self.rows(_SETS, *where, "bytes"):
            yield from _on_device(EventKind.SET, "Memset (Device)", at, nbytes)
        for start, end, thread, name, correlation in self.rows(
            _CALLS, "start", "end", "globalTid", "nameId", "correlationId"
        ):
            text = _API_VERSION.sub("", self.text(name) or "call")
            yield from _on_host(EventKind.RUNTIME, text, start, end, thread, correlation)
        for start, end, thread, kind, text, number, data in self.rows(
            _RANGES, "start", "end", "globalTid", "eventType", "text", "textId", "jsonText"
        ):
            if kind in _RANGE_TYPES:
                said, is_op, detail = _range(text or self.text(number) or "range", data, self.sizes)
                what = EventKind.OP if is_op else EventKind.ANNOTATION
                yield from _on_host(what, said, start, end, thread, detail=detail)


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _whole(value: Any, default: int = -1) -> int:
    usable = isinstance(value, int) and -_LARGEST < value < _LARGEST
    return value if usable else default


def _on_device(
    kind: EventKind, name: str, at: Sequence[Any], nbytes: Any = None
) -> Iterator[_Event]:
    start, end, process, device, stream, correlation = at
    if isinstance(start, int) and isinstance(end, int):
        event = TraceEvent(kind, name, _whole(start), _whole(end), device=_whole(device, 0))
        yield (
            _whole(process, 0),
            event._replace(
                stream=_whole(stream, 0), correlation=_whole(correlation), nbytes=_whole(nbytes)
            ),
        )


def _on_host(
    kind: EventKind,
    name: str,
    start: Any,
    end: Any,
    thread: Any,
    correlation: Any = None,
    detail: bytes = b"",
) -> Iterator[_Event]:
    if isinstance(start, int) and isinstance(end, int):
        tid = _whole(thread, 0)
        names = str((tid >> 24) & _THREAD), str(tid & _THREAD)
        event = TraceEvent(kind, name, _whole(start), _whole(end), names)
        yield tid & ~_THREAD, event._replace(correlation=_whole(correlation), detail=detail)


def _range(text: str, data: Any, sizes: Mapping[str, int]) -> tuple[str, bool, bytes]:
    """Return name, whether it is an operator, and the arguments of an NVTX range.

    >>> mm = "aten::mm, seq = 3, sizes = [[2, 3], [3, 4]]"
    >>> _range("iteration_12", None, {}), _range(mm, None, {})[2]
    (('ProfilerStep#12', False, b''), b'{"Input Dims":[[2, 3], [3, 4]]}')
    """
    if step := _STEP.fullmatch(text.strip()):
        return f"ProfilerStep#{step[1]}", False, b""
    if _NCCL_CALL.match(text):
        return _NCCL_CALL.sub("nccl:", text), False, _collective_arguments(text, data, sizes)
    operator = _OPERATOR.match(text)
    if operator is None:
        return text, False, b""
    dims = f'{{"Input Dims":{operator[2]}}}' if operator[2] else ""
    return operator[1], True, dims.encode()


def _payload(data: Any) -> dict[str, Any]:
    try:
        found = json.loads(data) if isinstance(data, str) else None
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _group_sizes(payloads: Iterable[Any]) -> dict[str, int]:
    """Return the number of ranks of communicators whose creation was recorded, by their ids."""
    told = (_payload(each) for each in payloads if isinstance(each, str) and _SIZE in each)
    found = ((str(each.get(_GROUP, "")), whole_number(each.get(_SIZE))) for each in told)
    return {group: size for group, size in found if group and size}


def _collective_arguments(text: str, data: Any, sizes: Mapping[str, int]) -> bytes:
    """Return the arguments of a collective from the payload of NCCL's range, as Kineto writes them.

    The size there is that of one message: what a rank gives to an all-gather and what it gets from
    a reduce-scatter. The other side follows from the number of ranks.
    """
    payload = _payload(data)
    told = (v for key, v in payload.items() if "bytes" in key.lower() or "size" in key.lower())
    nbytes = next((size for size in map(whole_number, told) if size), None)
    if nbytes is None:
        return b""
    out: dict[str, Any] = {
        "In msg nelems": None if "ReduceScatter" in text else nbytes,
        "Out msg nelems": None if "AllGather" in text else nbytes,
        "dtype": "Byte",
    }
    if group := str(payload.get(_GROUP, "")):
        out["Process Group Name"] = group
        out |= {"Group size": sizes[group]} if group in sizes else {}
    return json.dumps(out).encode()


def _traces(export: _Export) -> list[Trace]:
    """Return one trace per process with GPU events; without any, one of the whole file."""
    events = list(export.events())
    devices: dict[int, set[int]] = defaultdict(set)
    for process, event in events:
        if event.kind <= EventKind.SET:
            devices[process].add(event.device)
    processes = sorted(devices, key=lambda process: (min(devices[process]), process)) or [0]
    schema = dict(export.rows("META_DATA_EXPORT", "name", "value"))
    began = export.rows("TARGET_INFO_SESSION_START_TIME", "utcEpochNs")
    zero = next((_whole(time, 0) for (time,) in began), 0)
    named = named_rank(Path(export.path).name)
    several = len(processes) > 1
    out = []
    for number, process in enumerate(processes):
        device, units = _gpu(export, process, min(devices[process], default=0))
        note = f"{len(processes)} processes in this report: numbered by their device"
        out.append(
            trace_of_events(
                [event for owner, event in events if owner == process or not several],
                path=file_name(export.path),
                zero_ns=zero,
                format="nsight",
                rank=number if several else named,
                world_size=len(processes) if several else None,
                device=device,
                num_units=units,
                about={"schema": schema},
                losses=[note] if several else [],
            )
        )
    return out


def _gpu(export: _Export, process: int, device: int) -> tuple[str, int | None]:
    """Return name and number of SMs of a device; each process numbers its devices by itself."""
    found = export.rows("TARGET_INFO_CUDA_DEVICE", "pid", "cudaId", "gpuId")
    physical = {(pid, cuda): gpu for pid, cuda, gpu in found}
    number = physical.get(((process >> 24) & _THREAD, device), device)
    for ident, name, units in export.rows("TARGET_INFO_GPU", "id", "name", "smCount"):
        if ident == number:
            return str(name or ""), whole_number(units)
    return "", None
