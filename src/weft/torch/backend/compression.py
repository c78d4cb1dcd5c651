"""``compress``: broadcasts of a group that are encoded between hosts."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from weft.compress import codec_of
from weft.compress.delta import Delta, is_delta
from weft.errors import UsageError
from weft.torch.backend.c10d import ProcessGroup
from weft.torch.backend.channel import DTYPE_NAMES
from weft.torch.backend.group_functions import weft_group
from weft.torch.hosts.inter_host_encoded import BroadcastEncoding

HOPS = "p2p+"  # prefix of a codec: every hop decodes and encodes again, for comparison
LEAST = 32 << 10  # bytes: encoding shorter tensors gains nothing
Exclude = Callable[[Tensor], bool] | Iterable[Tensor]


def compress(
    group: ProcessGroup | None = None,
    *,
    broadcast: str | None,
    exclude: Exclude = (),
    keep_root: bool = False,
    least: int = LEAST,
) -> None:
    """Encode the broadcasts of a weft group between hosts; None turns encoding off.

    ``broadcast`` names a codec: pack, bf16, int8:256, delta+pack .. Every rank of the group makes
    the same call. Tensors that are not floating-point, shorter than ``least`` bytes or excluded
    (``exclude``: tensors, or a predicate) are sent as they are. After a lossy codec all ranks hold
    the same bytes, also the root, unless ``keep_root``. Inside a host nothing is encoded: memory
    is faster than any codec.
    """
    found = None if broadcast is None else _compression(broadcast, exclude, keep_root, least)
    weft_group(group).compression = found


@dataclass(frozen=True, slots=True)
class Compression:
    """Which broadcasts are encoded, and how."""

    encoding: BroadcastEncoding
    least: int
    excludes: Callable[[Tensor], bool]
    dtypes: frozenset[Any]

    def encoding_of(self, x: Tensor) -> BroadcastEncoding | None:
        """Return the encoding of a tensor, None if it is sent as it is."""
        if x.nbytes < self.least or x.dtype not in self.dtypes or self.excludes(x):
            return None
        return self.encoding


def _compression(name: str, exclude: Exclude, keep_root: bool, least: int) -> Compression:  # noqa: FBT001
    codec = name.removeprefix(HOPS)
    if is_delta(codec) and (keep_root or codec != name):
        raise UsageError(f"broadcast: {name!r} does not support keep_root or p2p+.", "Omit them.")
    _require(codec, "float32")
    dtypes = frozenset(dtype for dtype, text in DTYPE_NAMES.items() if _takes(codec, text))
    encoding = BroadcastEncoding(codec, codec != name, keep_root)
    return Compression(encoding, least, _excludes(exclude), dtypes)


def _require(codec: str, dtype: str) -> None:
    if is_delta(codec):
        Delta(codec, dtype, 0)
    else:
        codec_of(codec, dtype)


def _takes(codec: str, dtype: str) -> bool:
    try:
        _require(codec, dtype)
    except UsageError:
        return False
    return dtype in ("float32", "float16", "bfloat16")


def _excludes(exclude: Exclude) -> Callable[[Tensor], bool]:
    if callable(exclude):
        return exclude
    places = frozenset(tensor.data_ptr() for tensor in exclude)
    return lambda x: x.data_ptr() in places
