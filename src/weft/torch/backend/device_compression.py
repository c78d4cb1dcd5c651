"""Encoded broadcasts of CUDA tensors: weft's Triton codecs around the broadcast of their group.

The root encodes, the length goes first, then the payload; every other rank decodes. A tensor that
does not shrink goes as it is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from weft.errors import CodecError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable

    from weft.torch.hosts.inter_host_encoded import BroadcastEncoding

    Send = Callable[[Tensor], Any]


def broadcast_encoded(x: Tensor, encoding: BroadcastEncoding, send: Send, *, is_root: bool) -> None:
    """Broadcast ``x`` in encoded form; ``send`` broadcasts a tensor of its device and waits.

    After a lossy codec the root holds the decoded values as the others do, unless ``keep_root``.
    """
    from weft.compress import triton_codecs

    kind = encoding.codec.partition(":")[0]
    if x.dtype not in triton_codecs.CODEC_DTYPES.get(kind, ()):
        raise UsageError(
            f"broadcast: codec {encoding.codec!r} has no GPU form for {x.dtype}.",
            f"Use {', '.join(triton_codecs.CODEC_DTYPES)}, or exclude the tensor.",
        )
    flat = x.contiguous()
    payload = triton_codecs.encode(encoding.codec, flat) if is_root else None
    length = torch.full((1,), -1, dtype=torch.int64, device=x.device)
    if payload is not None and payload.numel() < x.nbytes:
        length.fill_(payload.numel())
    send(length)
    count = int(length)
    if count < 0:
        send(flat)
    else:
        if payload is None:
            payload = torch.empty(count, dtype=torch.uint8, device=x.device)
        send(payload)
        keeps = is_root and (kind == "pack" or encoding.keep_root)
        if not keeps and not triton_codecs.decode(encoding.codec, payload, flat):
            raise CodecError(
                f"codec {encoding.codec!r} cannot decode a broadcast of {count} bytes.",
                "All ranks must ask for the same codec and dtype.",
            )
    if flat.data_ptr() != x.data_ptr():
        x.copy_(flat)
