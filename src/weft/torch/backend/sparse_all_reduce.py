"""The sum of sparse COO tensors over a group, as DDP needs it for sparse gradients.

Every rank gathers the indices and values of all, whose numbers differ, and adds up what is at the
same index.
"""

import torch
from torch import Tensor

from weft.errors import UsageError
from weft.torch.backend.channel import Channel


def sparse_all_reduce(channel: Channel, tensor: Tensor, op: str, num_ranks: int) -> None:
    """Add up a sparse tensor of the same shape over all ranks, in place."""
    if op != "sum":
        raise UsageError(
            f"op: sparse tensors support sum only (got {op}).", "Call to_dense() first."
        )
    with torch.no_grad():
        mine = tensor.coalesce()
        dims = (mine.sparse_dim(), mine.dense_dim(), *mine.shape)
        shape = torch.tensor([mine.values().shape[0], *dims])
        shapes = shape.new_empty(num_ranks, len(shape))
        channel.all_gather(shapes, shape, async_op=False)
        for rank, theirs in enumerate(shapes.tolist()):
            if theirs[1:] != list(dims):
                raise UsageError(
                    f"tensors: rank {rank} has a sparse tensor of dimensions {theirs[1:]}, "
                    f"expected {list(dims)}."
                )
        counts = shapes[:, 0].tolist()
        indices = _gathered(channel, mine.indices().t().contiguous(), counts)
        values = _gathered(channel, mine.values().contiguous(), counts)
        total = torch.sparse_coo_tensor(indices.t(), values, mine.shape, check_invariants=False)
        tensor.copy_(total.coalesce())


def _gathered(channel: Channel, x: Tensor, counts: list[int]) -> Tensor:
    """Return the rows of all ranks, as many of each as ``counts`` says."""
    rows = [x.new_empty(count, *x.shape[1:]) for count in counts]
    channel.all_gather_list(rows, x, async_op=False)
    return torch.cat(rows)
