"""rocprofv3: JSON files of AMD's profiler (``--output-format json``).

Kernels, copies and calls are lists of records with times in nanoseconds; names are stored
separately, by id. The queue is used as the stream if a record has none.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any

import msgspec
import numpy as np

from weft.errors import FormatError
from weft.trace.formats.file_pieces import FilePieces
from weft.trace.trace import Bools, EventKind, Trace, TraceColumns, possible_times, skipped_note
from weft.units import file_name

_GPU_AGENT = 2
# Columns hold one word; larger values are rejected on reading.
_Word = Annotated[int, msgspec.Meta(ge=-(1 << 63), le=(1 << 63) - 1)]


class _Ident(msgspec.Struct):
    internal: _Word = -1
    external: _Word | dict[str, _Word] = -1


class _Handle(msgspec.Struct):
    handle: _Word = 0


class _Dispatch(msgspec.Struct):
    kernel_id: int = 0
    queue_id: _Handle = msgspec.field(default_factory=_Handle)


class _Record(msgspec.Struct):
    start_timestamp: _Word = 0
    end_timestamp: _Word = 0
    kind: _Word = -1
    operation: _Word = -1
    thread_id: _Word = 0
    bytes: _Word = -1
    correlation_id: _Ident = msgspec.field(default_factory=_Ident)
    dispatch_info: _Dispatch | None = None
    stream_id: _Handle | None = None


class _Symbol(msgspec.Struct):
    kernel_id: int = 0
    formatted_kernel_name: str = ""
    kernel_name: str = ""


class _Agent(msgspec.Struct):
    type: int = 0
    product_name: str = ""
    name: str = ""
    cu_count: int = 0


class _Operations(msgspec.Struct):
    operations: list[str] = []


class _Strings(msgspec.Struct):
    buffer_records: list[_Operations] = []


class _Buffers(msgspec.Struct):
    kernel_dispatch: list[_Record] = []
    memory_copy: list[_Record] = []
    hip_api: list[_Record] = []


class _Tool(msgspec.Struct):
    metadata: dict[str, Any] = {}
    agents: list[_Agent] = []
    strings: _Strings = msgspec.field(default_factory=_Strings)
    kernel_symbols: list[_Symbol] = []
    buffer_records: _Buffers = msgspec.field(default_factory=_Buffers)


class _File(msgspec.Struct, rename={"tools": "rocprofiler-sdk-tool"}):
    tools: list[_Tool]


def read_rocprof(path: Path | str) -> Trace:
    """Read the records of one process."""
    pieces = FilePieces(Path(path))
    try:
        tools = msgspec.json.decode(b"".join(pieces), type=_File).tools
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        lost = f"; {pieces.lost}" if pieces.lost else ""
        raise FormatError(
            f"{str(path)!r} is not a complete rocprofv3 file: {error}{lost}",
            "Write it with rocprofv3 --kernel-trace --output-format json, and let the job end.",
        ) from None
    if not tools:
        raise FormatError(f"{str(path)!r} contains no process of rocprofv3")
    return _trace(file_name(path), tools[0], len(tools))


def _trace(path: str, tool: _Tool, count: int) -> Trace:
    buffers = tool.buffer_records
    names = _Names(tool)
    kinds = (
        (EventKind.KERNEL, buffers.kernel_dispatch, names.kernel),
        (EventKind.COPY, buffers.memory_copy, names.operation),
        (EventKind.RUNTIME, buffers.hip_api, names.operation),
    )
    every = [(kind, record, name(record)) for kind, found, name in kinds for record in found]
    possible = _possible([record for _, record, _ in every])
    records = [each for each, keep in zip(every, possible.tolist(), strict=True) if keep]
    gpu = next((agent for agent in tool.agents if agent.type == _GPU_AGENT), _Agent())
    origin = min((record.start_timestamp for _, record, _ in records), default=0)
    losses = [f"skipped {count - 1} more processes of this file"] if count > 1 else []
    return Trace(
        path=path,
        columns=_columns([(k, r) for k, r, _ in records], [n for _, _, n in records], origin),
        names=tuple(names.texts),
        threads=names.threads([r for _, r, _ in records]),
        num_events=len(every),
        origin_ns=origin,
        format="rocprofv3",
        device=gpu.product_name or gpu.name,
        num_units=gpu.cu_count or None,
        losses=(*losses, *skipped_note(possible)),
    )


def _possible(records: Sequence[_Record]) -> Bools:
    start = np.array([record.start_timestamp for record in records], float)
    end = np.array([record.end_timestamp for record in records], float)
    return possible_times(start * 1e-9, (end - start) * 1e-9)


class _Names:
    """Distinct names by id."""

    def __init__(self, tool: _Tool) -> None:
        self._kernels = {
            symbol.kernel_id: symbol.formatted_kernel_name or symbol.kernel_name
            for symbol in tool.kernel_symbols
        }
        self._operations = [each.operations for each in tool.strings.buffer_records]
        self._ids: dict[str, int] = {}

    @property
    def texts(self) -> Sequence[str]:
        return list(self._ids)

    def _id(self, text: str) -> int:
        return self._ids.setdefault(text, len(self._ids))

    def kernel(self, record: _Record) -> int:
        number = record.dispatch_info.kernel_id if record.dispatch_info else -1
        return self._id(self._kernels.get(number, f"kernel {number}"))

    def operation(self, record: _Record) -> int:
        try:
            return self._id(self._operations[record.kind][record.operation])
        except IndexError:
            return self._id(f"operation {record.operation}")

    @staticmethod
    def threads(records: Sequence[_Record]) -> tuple[tuple[str, str], ...]:
        return tuple(("0", str(t)) for t in dict.fromkeys(record.thread_id for record in records))


def _columns(
    records: Sequence[tuple[EventKind, _Record]], names: Sequence[int], origin: int
) -> TraceColumns:
    def whole(get: Callable[[_Record], int]) -> np.ndarray:
        return np.array([get(record) for _, record in records], np.int64)

    start = whole(lambda r: r.start_timestamp)
    thread = {t: i for i, t in enumerate(dict.fromkeys(r.thread_id for _, r in records))}
    is_gpu = np.array([kind <= EventKind.SET for kind, _ in records], bool)
    unset = np.full(len(records), -1, np.int64)
    return TraceColumns(
        kind=np.array([kind for kind, _ in records], np.int8),
        name=np.array(names, np.int32),
        start=(start - origin) * 1e-9,
        duration=np.maximum(whole(lambda r: r.end_timestamp) - start, 0) * 1e-9,
        thread=whole(lambda r: thread[r.thread_id]).astype(np.int32),
        stream=np.where(is_gpu, whole(_stream), -1).astype(np.int32),
        device=np.where(is_gpu, 0, -1).astype(np.int32),
        correlation=whole(lambda r: r.correlation_id.internal),
        external=unset,
        nbytes=whole(lambda r: r.bytes),
        sequence=unset,
        function=unset,
        detail=unset.astype(np.int32),
    )


def _stream(record: _Record) -> int:
    if record.dispatch_info is not None:
        return record.dispatch_info.queue_id.handle
    return record.stream_id.handle if record.stream_id else -1
