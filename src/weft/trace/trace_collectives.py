"""Finds the collective kernels of a trace, and how many bytes each of them moved.

A collective kernel is recognized by its name, which mostly gives its kind. Its size is in the
arguments of the kernel (PyTorch 2.4 and later), or of the operator around its launch:
``record_param_comms`` with sizes, or ``nccl:all_reduce`` with the shape of its input. Sizes count
as in nccl-tests.

A profile of a job on CPUs has no GPU events. ``with_host_collectives`` makes kernels of two streams
of it: its outermost operators compute, and the ranges that a backend writes around its collectives
(``gloo:all_reduce``, on threads of their own) communicate. An operator that issues a collective or
waits for one does not compute; of an operator around it, the other parts do.
"""

import re
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from weft.trace.tensors import dtype_bytes, dtype_name, tensors_of
from weft.trace.trace import Bools, EventKind, Ints, Trace, TraceColumns, whole_number

# NCCL and RCCL; symmetric-memory kernels of PyTorch (multimem, one and two shot, low contention,
# signals between peers); DeepEP; MSCCL and MSCCL++; the all-reduces of vLLM, SGLang, TensorRT-LLM
# and AITER; NVSHMEM; and anything named after a collective.
_COLLECTIVE = re.compile(
    r"\b_?(nccl|rccl|msccl|mscclpp)|multimem_|deep_?ep::|\b(inter|intra)node(_ll)?::"
    r"|cross_device_reduce|(one|two)_?shot_?all|low_contention|lamport|nvshmem|quickreduce"
    r"|symm_mem|symmetric_memory|\b(barrier|put_signal|wait_signal)_kernel"
    r"|all_?reduce|reduce_?scatter|all_?gather|all_?to_?all",
    re.IGNORECASE,
)
# Inductor names a fused kernel after the operators around it, including collectives.
_FUSED = re.compile(r"\btriton_(poi|red|per|tem|for)_fused")
_NAMESPACE = "(anonymous namespace)::"
_LONGEST = 200  # significant characters: argument types follow
_DIGITS = 10  # larger values are not ranks
MESSAGE = "send_recv"  # between two ranks
_BATCH = "nccl:coalesced"  # what torch calls the launch of several calls at once
# Substrings of a name without case and underscores, the most specific first.
_KINDS = {
    "allreduce": "all_reduce",
    "reducescatter": "reduce_scatter",
    "allgather": "all_gather",
    "alltoall": "all_to_all",
    "sendrecv": "all_to_all",  # torch implements an all-to-all as sends and receives
    "broadcast": "broadcast",
    "crossdevicereduce": "all_reduce",
    "dispatch": "all_to_all",  # tokens to their experts, and back
    "combine": "all_to_all",
    "barrier": "barrier",
    "gather": "gather",
    "scatter": "scatter",
    "reduce": "reduce",
    "send": MESSAGE,
    "recv": MESSAGE,
}
_OF_INPUT = ("reduce_scatter", "all_to_all", "scatter")  # --size counts the input


@dataclass(frozen=True, slots=True)
class TracedCollective:
    """One collective kernel. ``nbytes`` as ``--size`` counts; None if the trace does not tell."""

    row: int
    kind: str  # "" if neither name nor arguments tell
    nbytes: int | None = None
    in_bytes: int | None = None
    out_bytes: int | None = None
    dtype: str = ""
    group: str = ""
    num_ranks: int | None = None
    ranks: tuple[int, ...] = ()
    sequence: int | None = None
    op: int = -1  # host row that issued it


def is_collective_name(name: str) -> bool:
    """Return whether a kernel name is that of a collective.

    >>> is_collective_name("ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevComm*)")
    True
    >>> is_collective_name("void at::native::reduce_kernel<512, 1>()")
    False
    """
    if _FUSED.search(name, 0, _LONGEST) is not None:
        return False
    return _COLLECTIVE.search(name, 0, _LONGEST) is not None


def kind_of(name: str) -> str:
    """Return the kind of collective that a name refers to.

    >>> (
    ...     kind_of("_reduce_scatter_base"),
    ...     kind_of("ncclKernel_SendRecv_RING"),
    ...     kind_of("ncclDevKernel_Generic"),
    ... )
    ('reduce_scatter', 'all_to_all', '')
    """
    own = name.replace(_NAMESPACE, "").split("(", maxsplit=1)[0]
    letters = re.sub("[^a-z]", "", own.lower())
    return next((kind for part, kind in _KINDS.items() if part in letters), "")


def communication(trace: Trace) -> Bools:
    """Return which GPU events, in the order of ``trace.gpu``, are collective kernels."""
    kernels = trace.columns.kind[trace.gpu] == EventKind.KERNEL
    out: Bools = trace.named(trace.gpu, is_collective_name) & kernels
    return out


def collectives(trace: Trace) -> tuple[TracedCollective, ...]:
    """Return every collective kernel of a trace, by start."""
    rows = trace.gpu[communication(trace)]
    found = _Arguments(trace)
    return tuple(_collective(trace, row, found) for row in rows.tolist())


class _Arguments:
    """Arguments of rows; equal ones are parsed once."""

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        self._known: dict[int, dict[str, Any]] = {}

    def of(self, row: int) -> dict[str, Any]:
        ident = int(self.trace.columns.detail[row])
        if ident not in self._known:
            self._known[ident] = self.trace.detail_of(row)
        return self._known[ident]


def _collective(trace: Trace, row: int, arguments: _Arguments) -> TracedCollective:
    """Describe a collective by its most specific arguments: sizes, then shapes."""
    launch = int(trace.launch[row])
    around = trace.ancestors(launch) if launch >= 0 else []
    asked = [r for r in around if _asks(trace.name_of(r))]
    found = [arguments.of(row), *map(arguments.of, asked)]
    sized = [args for args in found if "In msg nelems" in args]
    shaped = [args for args in found if _shape_bytes(args) is not None]
    args = next(iter([*sized, *shaped]), {})
    names = [trace.name_of(r) for r in asked if trace.name_of(r) != "record_param_comms"]
    # the issuing operator tells more than the kernel: a generic kernel does all kinds
    kind = next(filter(None, map(kind_of, [*names, trace.name_of(row)])), "")
    if _BATCH in names and kind == "all_to_all":  # one that was asked for has a name of its own
        kind = MESSAGE
    op = asked[-1] if asked else -1
    return collective_of_arguments(row, args, kind, world_size=trace.world_size, op=op)


def _asks(name: str) -> bool:
    return name == "record_param_comms" or name.startswith(("nccl:", "c10d::"))


def collective_of_arguments(
    row: int, args: dict[str, Any], kind: str, *, world_size: int | None = None, op: int = -1
) -> TracedCollective:
    """Describe a collective by profiler arguments; ``kind`` is the default kind."""
    kind = kind_of(str(args.get("Collective name", ""))) or kind
    num_ranks = whole_number(args.get("Group size")) or world_size
    dtype, inward, outward = _sizes(args, kind, num_ranks)
    return TracedCollective(
        row=row,
        kind=kind,
        nbytes=inward if kind in _OF_INPUT else outward,
        in_bytes=inward,
        out_bytes=outward,
        dtype=dtype_name(dtype),
        group=str(args.get("Process Group Name", "")),
        num_ranks=num_ranks,
        ranks=_ranks(args.get("Process Group Ranks")),
        sequence=whole_number(args.get("Seq")),
        op=op,
    )


def _sizes(
    args: dict[str, Any], kind: str, num_ranks: int | None
) -> tuple[str, int | None, int | None]:
    """Return dtype, input bytes and output bytes; old files have only the input shape."""
    if "In msg nelems" in args:
        dtype = str(args.get("dtype", ""))
        each = dtype_bytes(dtype)
        counts = (whole_number(args.get(key)) for key in ("In msg nelems", "Out msg nelems"))
        inward, outward = (None if n is None or each is None else n * each for n in counts)
        if num_ranks and kind == "all_gather" and outward is None and inward is not None:
            outward = inward * num_ranks
        if num_ranks and kind == "reduce_scatter" and inward is None and outward is not None:
            inward = outward * num_ranks
        return dtype, whole_number(inward), whole_number(outward)
    inward = outward = _shape_bytes(args)
    if inward is None:
        return "", None, None
    if num_ranks and kind in ("all_gather", "reduce_scatter"):
        outward = inward * num_ranks if kind == "all_gather" else inward // num_ranks
    return tensors_of(args)[0].dtype, inward, whole_number(outward)


def _shape_bytes(args: dict[str, Any]) -> int | None:
    """Return the bytes of all input tensors, if their shapes and types are known."""
    return whole_number(sum(tensor.nbytes for tensor in tensors_of(args))) or None


def _ranks(value: Any) -> tuple[int, ...]:
    """Parse a list of ranks; abbreviated lists are ignored."""
    if not isinstance(value, str) or not re.fullmatch(r"\[[0-9, ]*\]", value):
        return ()
    found = re.findall("[0-9]+", value)
    return tuple(map(int, found)) if all(len(each) < _DIGITS for each in found) else ()


_BACKENDS = ("gloo:", "weft:", "mpi:", "ucc:")
# Operators that issue a collective or wait for one.
_ISSUERS = ("c10d", "_c10d", "record_param_comms")
_COMPUTES, _COMMUNICATES = 0, 1  # streams


def with_host_collectives(trace: Trace) -> Trace:
    """Return a trace without GPU events with its host's work as kernels; others unchanged."""
    if len(trace.gpu):
        return trace
    columns = trace.columns
    rows = np.arange(len(trace))
    moves = trace.named(rows, lambda name: name.startswith(_BACKENDS) and bool(kind_of(name)))
    if not len(rows) or not moves.any():
        return trace
    asks = trace.named(rows, lambda name: name.startswith((*_ISSUERS, *_BACKENDS)))
    is_op = (columns.kind == EventKind.OP) & ~(asks | _inside(trace, asks) | _around(trace, asks))
    outermost = is_op & ~_inside(trace, is_op)
    chosen = np.concatenate((np.flatnonzero(outermost), np.flatnonzero(moves)))
    added = {field.name: getattr(columns, field.name)[chosen] for field in fields(TraceColumns)}
    communicates = np.arange(len(chosen)) >= int(outermost.sum())
    added["kind"] = np.full(len(chosen), EventKind.KERNEL, np.int8)
    added["stream"] = np.where(communicates, _COMMUNICATES, _COMPUTES).astype(np.int32)
    added["device"] = np.zeros(len(chosen), np.int32)
    names = [
        f"nccl:{name.partition(':')[2]}" if name.startswith(_BACKENDS) else name
        for name in trace.names
    ]
    out = replace(
        trace,
        columns=TraceColumns(
            **{
                key: np.concatenate((getattr(columns, key), values))
                for key, values in added.items()
            }
        ),
        names=tuple(names),
        losses=(*trace.losses, "no GPU events: operators of the host are shown as kernels"),
    )
    launch = np.full(len(out), -1, np.int32)
    launch[len(trace) :] = chosen  # each began by itself
    out.__dict__["launch"] = launch
    return out


def _around(trace: Trace, inner: Bools) -> Bools:
    """Return whether each row has one of these rows inside it."""
    at, out = np.flatnonzero(inner), np.zeros(len(trace), bool)
    while at.size:
        at = np.unique(trace.parent[at])
        at = at[at >= 0]
        at = at[~out[at]]
        out[at] = True
    return out


def _inside(trace: Trace, outer: Bools) -> Bools:
    """Return whether each row has one of these rows around it."""
    at: Ints = trace.parent.astype(np.int64)
    out = np.zeros(len(trace), bool)
    while (open_ := np.flatnonzero((at >= 0) & ~out)).size:
        out[open_] = outer[at[open_]]
        at[open_] = trace.parent[at[open_]]
    return out
