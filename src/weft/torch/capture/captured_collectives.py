"""Conversion of ops of torch.distributed to collectives: kind, ranks and bytes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import FakeWork
from torch.distributed import distributed_c10d

from weft.errors import CaptureError
from weft.schedule.values import Group
from weft.step.step_graph import WORLD, Collective
from weft.torch.c10d_collectives import BY_FUNCTIONAL_OP, BY_OP
from weft.torch.capture.op_costs import dtype_name, nbytes_of, op_name, tensors_in

# Ops besides the collectives: their first argument is what is sent or received.
_OTHERS = {"barrier": "barrier", "send": "send", "recv_": "recv"}


class GroupNames:
    """The process groups that a step used, by name, as a Workload has them."""

    def __init__(self, rank: int, num_ranks: int) -> None:
        self.rank, self.num_ranks = rank, num_ranks
        self.found: dict[str, Group] = {}
        self._names: dict[tuple[int, ...], str] = {}
        self._streams: dict[str, list[str]] = {}  # of process groups, by the name of their ranks

    def name_of(self, ranks: Sequence[int]) -> str:
        """Return the name of the group of these ranks."""
        key = tuple(ranks)
        if key not in self._names:
            self._names[key] = self._named(key)
        return self._names[key]

    def _named(self, ranks: tuple[int, ...]) -> str:
        if ranks == tuple(range(self.num_ranks)):
            return WORLD
        stride = ranks[1] - ranks[0] if len(ranks) > 1 else 1
        regular = Group(len(ranks), max(1, stride))
        ours = tuple(int(regular.member(self.rank, index)) for index in range(len(ranks)))
        if ours == ranks:
            name = f"{len(ranks)} ranks" + (f" {stride} apart" if stride > 1 else "")
        else:
            regular = Group(len(ranks), 1, ranks)
            name = f"ranks {','.join(map(str, ranks))}"
        self.found[name] = regular
        return name

    def stream_of(self, args: Sequence[Any]) -> str:
        """Return the stream of a process group: groups of the same ranks have one each."""
        group = _group_of(args)
        name = self.name_of(dist.get_process_group_ranks(group))
        streams = self._streams.setdefault(name, [])
        if group.group_name not in streams:
            streams.append(group.group_name)
        place = streams.index(group.group_name)
        return f"comm {name}" + (f" ({place + 1})" if place else "")

    def collective(self, func: Any, args: Sequence[Any], outputs: Any) -> Collective | None:
        """Return the collective that an op is; None if it is none."""
        name = op_name(func)
        if name == "recv_any_source_" and func.namespace == "c10d":
            raise CaptureError(
                "dist.recv: src=None (from any rank) cannot be captured: "
                "who sends depends on the time of arrival",
                "Name the sending rank while the step is captured.",
            )
        found = _kind_and_tensors(func.namespace, name, args, outputs)
        if found is None:
            return None
        kind, sized = found
        ranks = dist.get_process_group_ranks(_group_of(args))
        if not sized and kind in ("gather", "scatter"):  # only the root has the whole
            part = BY_OP[name].part
            assert part is not None
            sized = tensors_in([args[part]]) * len(ranks)
        position = _peer(kind, args)
        return Collective(
            kind,
            nbytes_of(sized),
            dtype_name(sized[0].dtype) if sized else "",
            self.name_of(ranks),
            position,
            _splits(kind, args, sized, len(ranks)),
        )


def fake_result(func: Any, args: Sequence[Any]) -> Any:
    """Return what a c10d op without a fake kernel returns: a Work, after what it filled."""
    work = FakeWork().boxed()
    return work if len(func._schema.returns) == 1 else (args[0], work)  # noqa: SLF001


def written_by(func: Any, args: Sequence[Any], results: list[torch.Tensor]) -> list[torch.Tensor]:
    """Return the tensors that a collective fills or reduces into."""
    name = op_name(func)
    if func.namespace == "c10d":
        return [] if name in ("send", "barrier") else [*results, *tensors_in([args[0]])]
    return [*results, *tensors_in([args[0]])] if name.endswith("_") else results


def _group_of(args: Sequence[Any]) -> Any:
    """Return the process group among the arguments of a collective: boxed, or by its name."""
    for value in args:
        if isinstance(value, torch.ScriptObject):
            try:
                return dist.ProcessGroup.unbox(value)
            except (RuntimeError, TypeError, ValueError):
                continue
        if isinstance(value, dist.ProcessGroup):
            return value
    for value in reversed(args):
        if isinstance(value, str):
            named: Any = distributed_c10d
            return named._resolve_process_group(value)  # noqa: SLF001
    raise AssertionError("a collective without a process group")


def _kind_and_tensors(
    space: str, name: str, args: Sequence[Any], outputs: Any
) -> tuple[str, list[torch.Tensor]] | None:
    """Return the collective of an op and the tensors that have its bytes; None for other ops."""
    if space == "c10d":
        if name in _OTHERS:
            return _OTHERS[name], tensors_in([args[0]])
        if name in BY_OP:
            return BY_OP[name].kind, tensors_in([args[BY_OP[name].whole]])
    elif "c10d" in space and name in BY_FUNCTIONAL_OP:
        kind = BY_FUNCTIONAL_OP[name].kind  # functional ops return their outputs
        return kind, tensors_in([outputs] if kind == "all_gather" else [args[0]])
    return None


def _peer(kind: str, args: Sequence[Any]) -> int | None:
    """Read the other end or the root, which c10d gives as a position in the group."""
    if kind in ("send", "recv", "broadcast", "reduce", "gather", "scatter"):
        numbers = [value for value in args if isinstance(value, int)]
        return numbers[0] if numbers else 0
    return None


def _splits(
    kind: str, args: Sequence[Any], sized: list[torch.Tensor], size: int
) -> tuple[int, ...]:
    """Return the bytes for each peer of an all-to-all with splits."""
    if kind != "all_to_all" or not sized:
        return ()
    if len(sized) == size > 1:
        each = tuple(nbytes_of([tensor]) for tensor in sized)
        return each if len(set(each)) > 1 else ()
    lists = [value for value in args if _is_numbers(value) and len(value) == size]
    if not lists or (len(set(lists[-1])) <= 1 and len(set(lists[0])) <= 1):
        return ()
    row = nbytes_of(sized) // max(1, int(sized[0].shape[0]))
    return tuple(int(rows) * row for rows in lists[-1])


def _is_numbers(value: Any) -> bool:
    return isinstance(value, (list, tuple)) and all(isinstance(each, int) for each in value)
