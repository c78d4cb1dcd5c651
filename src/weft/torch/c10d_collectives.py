"""One table of the collectives of c10d: their names in torch and in weft, and their sizes.

The process group, routes of plans and the capture of steps read it. A collective appears as a
method of ``ProcessGroup``, as an op of the dispatcher (``torch.ops.c10d``) and as functional ops
(``torch.ops._c10d_functional``).
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class C10dCollective:
    """One method of a process group.

    ``whole`` is the index of the argument that holds the bytes of the collective, as nccl-tests
    counts them. Only the root of a gather or scatter has it; ``part`` is the argument with the
    bytes of one rank, which all ranks have.
    """

    kind: str  # in weft
    method: str  # of ProcessGroup, from torch 2.13 on
    op: str  # of torch.ops.c10d
    whole: int
    part: int | None = None
    older_method: str = ""  # before torch 2.13, and in groups written in Python
    functional: tuple[str, ...] = ()  # of torch.ops._c10d_functional


COLLECTIVES = (
    C10dCollective(
        "all_reduce", "allreduce", "allreduce_", 0, functional=("all_reduce", "all_reduce_")
    ),
    C10dCollective(
        *("all_reduce", "allreduce_coalesced", "allreduce_coalesced_", 0),
        functional=("all_reduce_coalesced",),
    ),
    C10dCollective(
        "broadcast", "broadcast", "broadcast_", 0, functional=("broadcast", "broadcast_")
    ),
    C10dCollective("reduce", "reduce", "reduce_", 0),
    C10dCollective("all_gather", "allgather", "allgather_", 0),
    C10dCollective("all_gather", "allgather_coalesced", "allgather_coalesced_", 0),
    C10dCollective(
        *("all_gather", "all_gather_single", "_allgather_base_", 0),
        older_method="_allgather_base",
        functional=("all_gather_into_tensor",),
    ),
    C10dCollective(
        *("all_gather", "all_gather_single_coalesced", "allgather_into_tensor_coalesced_", 0),
        older_method="allgather_into_tensor_coalesced",
        functional=("all_gather_into_tensor_coalesced",),
    ),
    C10dCollective("reduce_scatter", "reduce_scatter", "reduce_scatter_", 1),
    C10dCollective(
        *("reduce_scatter", "reduce_scatter_single", "_reduce_scatter_base_", 1),
        older_method="_reduce_scatter_base",
        functional=("reduce_scatter_tensor",),
    ),
    C10dCollective(
        "reduce_scatter",
        "reduce_scatter_single_coalesced",
        "reduce_scatter_tensor_coalesced_",
        1,
        older_method="reduce_scatter_tensor_coalesced",
        functional=("reduce_scatter_tensor_coalesced",),
    ),
    C10dCollective("all_to_all", "alltoall", "alltoall_", 1),
    C10dCollective(
        *("all_to_all", "all_to_all_single", "alltoall_base_", 1),
        older_method="alltoall_base",
        functional=("all_to_all_single",),
    ),
    C10dCollective("gather", "gather", "gather_", 0, part=1),
    C10dCollective("scatter", "scatter", "scatter_", 1, part=0),
)

BY_METHOD = {each.method: each for each in COLLECTIVES}
BY_OP = {each.op: each for each in COLLECTIVES}
BY_FUNCTIONAL_OP = {name: each for each in COLLECTIVES for name in each.functional}
