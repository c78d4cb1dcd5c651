"""PyTorch's flight recorder: the last collectives of a rank, as JSON.

``torch._C._distributed_c10d._dump_nccl_trace_json()`` writes it; the files that a hanging job
leaves behind are pickles, which can run code when they are read, and are refused. An entry has the
times at which the watchdog saw a collective begin and end, and its duration if
``TORCH_NCCL_ENABLE_TIMING=1`` was set. Entries become collective kernels of a Trace; what never
completed is noted, because that is what the others wait for.
"""

import re
from collections.abc import Iterator, Sequence
from math import prod
from pathlib import Path
from typing import Any

import msgspec

from weft.errors import FormatError
from weft.trace.formats.file_pieces import FilePieces
from weft.trace.trace import EventKind, Trace, TraceEvent, trace_of_events, whole_number
from weft.units import file_name

_INT_MAX = 1 << 62


def read_flight_recorder(path: Path | str) -> Trace:
    """Read one rank's dump."""
    pieces = FilePieces(Path(path))
    try:
        dump = msgspec.json.decode(b"".join(pieces))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise FormatError(
            f"{str(path)!r} is not a complete flight-recorder dump: {error}",
            "Wait until it is written, or dump it again with _dump_nccl_trace_json().",
        ) from None
    entries = dump.get("entries") if isinstance(dump, dict) else None
    if not isinstance(entries, list):
        raise FormatError(f"{str(path)!r} has no list of entries of the flight recorder")
    found = [each for each in entries if isinstance(each, dict)]
    sizes = _group_sizes(dump.get("pg_config"))
    events = [
        TraceEvent(
            *(EventKind.KERNEL, _name(entry), *times),
            device=0,
            stream=whole_number(entry.get("pg_id")) or 0,
            detail=msgspec.json.encode(_arguments(entry, sizes)),
        )
        for entry in found
        if (times := _times(entry)) is not None
    ]
    named = re.search(r"(?:rank)?[-_.]?(\d{1,6})(?:\.json)?(?:\.gz)?$", Path(path).name)
    rank = whole_number(dump.get("rank"))
    return trace_of_events(
        events,
        path=file_name(path),
        num_events=len(entries),
        format="flight_recorder",
        rank=rank if rank is not None else int(named[1]) if named else None,
        world_size=max(sizes.values(), default=None),
        about={"version": dump.get("version")},
        losses=_unfinished(found),
    )


def refuse_pickle(path: Path | str) -> FormatError:
    """Return the error for a pickled dump, with the way to get JSON."""
    return FormatError(
        f"{str(path)!r} is a pickle, which can run code when it is read (expected JSON)",
        "Dump JSON in the job (torch._C._distributed_c10d._dump_nccl_trace_json()), or convert a "
        'file that you trust: python -c "import json, pickle, sys; json.dump(pickle.load(open('
        "sys.argv[1], 'rb')), open(sys.argv[2], 'w'))\" dump dump.json",
    )


def _times(entry: dict[str, Any]) -> tuple[int, int] | None:
    """Return start and end in nanoseconds; None if the collective did not complete."""
    end = entry.get("time_discovered_completed_ns")
    if not isinstance(end, int) or not 0 <= end < _INT_MAX:
        return None
    duration = entry.get("duration_ms")
    if isinstance(duration, int | float) and 0 <= duration < 1e12:
        return end - round(duration * 1e6), end
    begun = [entry.get(key) for key in ("time_discovered_started_ns", "time_created_ns")]
    start = next((t for t in begun if isinstance(t, int) and 0 <= t <= end), end)
    return start, end


def _name(entry: dict[str, Any]) -> str:
    return str(entry.get("profiling_name") or "nccl:collective")


def _arguments(entry: dict[str, Any], group_sizes: dict[str, int]) -> dict[str, Any]:
    """Return the arguments of a collective as Kineto writes them."""
    group = entry.get("process_group")
    name = str(group[0]) if isinstance(group, list) and group else str(entry.get("pg_id", ""))
    dtypes = [entry.get(key) for key in ("input_dtypes", "output_dtypes")]
    dtype = next((str(each[0]) for each in dtypes if isinstance(each, list) and each), "")
    out: dict[str, Any] = {
        "Collective name": _name(entry).partition(":")[2],
        "Process Group Name": name,
        "dtype": dtype,
    }
    for key, sizes in (("In msg nelems", "input_sizes"), ("Out msg nelems", "output_sizes")):
        count = _elements(entry.get(sizes))
        if count is not None:
            out[key] = count
    if name in group_sizes:
        out["Group size"] = group_sizes[name]
    sequence = whole_number(entry.get("collective_seq_id"))
    if sequence is not None and not entry.get("is_p2p"):
        out["Seq"] = sequence
    return out


def _elements(sizes: Any) -> int | None:
    if not isinstance(sizes, list):
        return None
    shapes = [each for each in sizes if isinstance(each, list)]
    known = [tuple(n for n in map(whole_number, each) if n is not None) for each in shapes]
    return whole_number(sum(prod(shape) for shape in known))  # 1 of a scalar


def _group_sizes(config: Any) -> dict[str, int]:
    """Return the number of ranks of each process group."""
    out = {}
    for name, about in config.items() if isinstance(config, dict) else ():
        ranks = about.get("ranks") if isinstance(about, dict) else None
        listed = re.findall(r"\d+", ranks) if isinstance(ranks, str) else ranks
        if isinstance(listed, list) and listed:
            out[str(name)] = len(listed)
    return out


def _without_parts(entries: Sequence[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield entries, the last first, without the calls of batches.

    The calls of a batch precede its launch in their group. They have its number, and no times of
    their own: the launch stands for them.
    """
    launches: dict[str, tuple[bool, object]] = {}  # by group, the number of the last one
    for entry in reversed(entries):
        group, is_p2p = str(entry.get("process_group")), bool(entry.get("is_p2p"))
        number = is_p2p, entry.get("p2p_seq_id" if is_p2p else "collective_seq_id")
        if _name(entry).endswith(":coalesced"):
            launches[group] = number
        elif launches.get(group) == number and _times(entry) is None:
            continue
        else:
            launches.pop(group, None)
        yield entry


def _unfinished(entries: list[dict[str, Any]]) -> list[str]:
    """Return a note on collectives that did not complete."""
    open_ = [entry for entry in _without_parts(entries) if _times(entry) is None][::-1]
    if not open_:
        return []
    first = open_[0]
    return [
        (
            f"{len(open_)} collectives did not complete; the first is {_name(first)} number "
            f"{first.get('collective_seq_id')} of group {first.get('process_group') or '?'}, "
            f"state {first.get('state')}"
        )
    ]
