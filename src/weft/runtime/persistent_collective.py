"""Persistent collectives, as in MPI-4: prepared and bound once, then started by one call."""

from collections.abc import Mapping
from typing import Any

from weft._core import PersistentCollective
from weft.collectives import collective, pull
from weft.collectives.catalogue import MOST_EAGER, REDUCING, ROOTED
from weft.errors import UsageError
from weft.runtime.algorithm_selector import AlgorithmSelector
from weft.runtime.bound_memory import Bindable
from weft.runtime.communicator import Communicator
from weft.runtime.faults import AbortTuple
from weft.runtime.prepared_schedule import PreparedSchedule, prepare

# Heap memory is read in place, so an eager copy costs time and saves one synchronization. Two
# ranks, 1 KiB, eager and pull: broadcast 0.78 and 1.12 us, all_reduce 1.22 and 1.39 us; other
# kinds gain nothing, and at 8 KiB all lose. Four ranks on two cores, broadcast of 8 KiB: 3.6 and
# 24 us.
EAGER_UP_TO = {"broadcast": 2 << 10, "all_reduce": 2 << 10}
EAGER_UP_TO_OVERSUBSCRIBED = {"broadcast": 16 << 10}
PUSH_FROM = 16 << 20  # bytes of an output that exceeds the caches


def prepare_collective(
    world: Communicator,
    kind: str,
    nbytes: int,
    *,
    dtype: str = "float32",
    op: str = "sum",
    root: int = 0,
) -> PreparedSchedule:
    """Prepare a collective with the algorithm that is fastest on arrays of ``world.empty``.

    Bind the arrays once (``bind_persistent``) and call what that gives as often as wanted. A root
    whose bytes are laid out may run ahead of those that take them. Collective.
    """
    options: dict[str, Any] = {"dtype": dtype, "op": op} if kind in REDUCING else {}
    if kind in ROOTED:
        options["root"] = root
    limits = EAGER_UP_TO_OVERSUBSCRIBED if world.is_oversubscribed else EAGER_UP_TO
    eager = nbytes <= limits.get(kind, 0) and 1 < world.num_ranks <= MOST_EAGER
    num_buffers = AlgorithmSelector().num_buffers_of(kind, nbytes) if eager else 1
    if kind == "all_gather" and nbytes >= PUSH_FROM and world.num_ranks > 1:
        made = pull.push_all_gather(world.num_ranks, nbytes)
    else:
        algorithm = "eager" if eager else "pull"
        made = collective(kind, algorithm, num_ranks=world.num_ranks, nbytes=nbytes, **options)
    return prepare(made, world, bound=True, num_buffers=num_buffers)


def bind_persistent(
    prepared: PreparedSchedule, bind: Mapping[str, Bindable]
) -> PersistentCollective:
    """Bind memory permanently; return a collective to start by calling it without arguments.

    It keeps the memory alive. Schedules with kernels are not supported.
    """
    name = prepared.schedule.name
    if next(prepared.kernel_rows(), None) is not None:
        raise UsageError(
            f"{name} has kernels, which a persistent collective cannot run.", "Use run()."
        )

    def failed(abort: AbortTuple | None, error: BaseException | None) -> None:
        if error is not None:
            prepared.world.fail_with(error, f" in {name}")
        elif abort is not None:
            prepared.raise_aborted(abort, name)

    return PersistentCollective(
        prepared.program, prepared.world.member, prepared.binds(bind), failed, bind
    )
