"""rocprofv3: JSON files of AMD's profiler (``--output-format json``).

Kernels, copies and calls are lists of records with times in nanoseconds; names are stored
separately, by id. The queue is used as the stream if a record has none.
"""

from pathlib import Path
from typing import Annotated, Any

import msgspec

from weft.errors import FormatError
from weft.trace.formats.file_pieces import FilePieces
from weft.trace.trace import EventKind, Trace, TraceEvent, trace_of_events
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
    kernels = {
        symbol.kernel_id: symbol.formatted_kernel_name or symbol.kernel_name
        for symbol in tool.kernel_symbols
    }
    operations = [each.operations for each in tool.strings.buffer_records]

    def kernel(record: _Record) -> str:
        number = record.dispatch_info.kernel_id if record.dispatch_info else -1
        return kernels.get(number, f"kernel {number}")

    def operation(record: _Record) -> str:
        try:
            return operations[record.kind][record.operation]
        except IndexError:
            return f"operation {record.operation}"

    def event(kind: EventKind, name: str, record: _Record) -> TraceEvent:
        is_gpu = kind <= EventKind.SET
        return TraceEvent(
            *(kind, name, record.start_timestamp, record.end_timestamp),
            thread=("0", str(record.thread_id)),
            device=0 if is_gpu else -1,
            stream=_stream(record) if is_gpu else -1,
            correlation=record.correlation_id.internal,
            nbytes=record.bytes,
        )

    buffers = tool.buffer_records
    gpu = next((agent for agent in tool.agents if agent.type == _GPU_AGENT), _Agent())
    return trace_of_events(
        [
            *(event(EventKind.KERNEL, kernel(each), each) for each in buffers.kernel_dispatch),
            *(event(EventKind.COPY, operation(each), each) for each in buffers.memory_copy),
            *(event(EventKind.RUNTIME, operation(each), each) for each in buffers.hip_api),
        ],
        path=path,
        format="rocprofv3",
        device=gpu.product_name or gpu.name,
        num_units=gpu.cu_count or None,
        losses=[f"skipped {count - 1} more processes of this file"] if count > 1 else [],
    )


def _stream(record: _Record) -> int:
    if record.stream_id is not None:
        return record.stream_id.handle
    return -1 if record.dispatch_info is None else record.dispatch_info.queue_id.handle
