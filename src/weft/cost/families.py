"""The families of kernels that have a price: the columns of each, and its formula."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from weft.cost.attention import (
    attention_places,
    attention_seconds,
    backward_seconds,
    decode_seconds,
)
from weft.cost.embedding import (
    embedding_backward_seconds,
    embedding_seconds,
    fused_embedding_backward_seconds,
    fused_embedding_seconds,
)
from weft.cost.lookups import BIN_NAMES
from weft.cost.matmul import (
    Coefficients,
    Columns,
    Floats,
    convolution_places,
    convolution_seconds,
    matmul_places,
    matmul_seconds,
)
from weft.cost.moe import moe_places, moe_seconds
from weft.cost.streaming import row_seconds, streaming_seconds, strided_seconds
from weft.hardware import Device
from weft.hardware.dtypes import QuantizationScheme

Formula = Callable[[Columns, Device, QuantizationScheme, Coefficients], Floats]
Places = Callable[[Columns], Mapping[str, Floats]]
REQUIRED = float("nan")


def no_places(columns: Columns) -> Mapping[str, Floats]:
    """Return the columns themselves: all that corrections look at."""
    del columns
    return {}


@dataclass(frozen=True, slots=True)
class Family:
    """A kind of kernel: its columns with what they are if not given, in the order of a shape.

    ``fit_family`` names the family whose coefficients it uses, ``dtype`` what it has if none is
    given, ``places`` gives what its corrections look at besides the columns. ``usual`` names
    libraries, of which the first that is known on a device is meant if none is named.
    """

    name: str
    columns: Mapping[str, float] = field(hash=False)
    formula: Formula
    fit_family: str
    dtype: str = "bf16"
    places: Places = no_places
    usual: tuple[str, ...] = ()

    @property
    def required(self) -> tuple[str, ...]:
        """The columns without which there is no price."""
        return tuple(key for key, value in self.columns.items() if value != value)  # noqa: PLR0124


_PRODUCT = {"m": REQUIRED, "n": REQUIRED, "k": REQUIRED, "batch": 1.0}
_BATCHED = {"batch": REQUIRED, "m": REQUIRED, "n": REQUIRED, "k": REQUIRED}
_ATTENTION = {
    "batch": REQUIRED,
    "heads": REQUIRED,
    "kv_heads": REQUIRED,
    "queries": REQUIRED,
    "keys": REQUIRED,
    "head_dim": REQUIRED,
    "causal": 1.0,
    "window": 0.0,
    "kv_bytes": 2.0,
    "latent": 0.0,
}
_DECODE = {
    "batch": REQUIRED,
    "heads": REQUIRED,
    "kv_heads": REQUIRED,
    "keys": REQUIRED,
    "head_dim": REQUIRED,
    "window": 0.0,
    "kv_bytes": 2.0,
    "latent": 0.0,
}
_EXPERTS = {
    "tokens": REQUIRED,
    "hidden": REQUIRED,
    "inter": REQUIRED,
    "topk": REQUIRED,
    "experts": REQUIRED,
    "tp": 1.0,
    "ep": 1.0,
    "skew": 0.0,
}
_LOOKUPS = {
    "batch": REQUIRED,
    "rows": REQUIRED,
    "dim": REQUIRED,
    "pooling": 1.0,
    "zipf": 0.0,
    "tables": 1.0,
    "state": 0.0,
    **dict.fromkeys(BIN_NAMES, 0.0),
}
_IMAGES = {
    "batch": REQUIRED,
    "channels": REQUIRED,
    "height": REQUIRED,
    "width": REQUIRED,
    "filters": REQUIRED,
    "kernel": REQUIRED,
    "stride": 1.0,
    "groups": 1.0,
}
_MOVED = {"nbytes": REQUIRED}
_STRIDED = {"elements": REQUIRED, **_MOVED}
PARTS = ("stride", "groups", "tp", "ep")  # into which other columns are divided


def _rows(passes: float) -> dict[str, float]:
    return {"rows": REQUIRED, "width": REQUIRED, "passes": passes}


FAMILIES = {
    family.name: family
    for family in (
        Family("gemm", _PRODUCT, matmul_seconds, "gemm", places=matmul_places),
        Family("bmm", _BATCHED, matmul_seconds, "bmm", places=matmul_places),
        Family("convolution", _IMAGES, convolution_seconds, "gemm", places=convolution_places),
        Family("attention", _ATTENTION, attention_seconds, "attention", places=attention_places),
        Family(
            "attention-backward",
            _ATTENTION,
            backward_seconds,
            "attention-backward",
            places=attention_places,
            usual=("cudnn", "flash4", "flash2"),
        ),
        Family("decode", _DECODE, decode_seconds, "decode", places=attention_places),
        Family("moe", _EXPERTS, moe_seconds, "moe", places=moe_places),
        Family("embedding", _LOOKUPS, embedding_seconds, "embedding", "fp32"),
        Family("embedding-backward", _LOOKUPS, embedding_backward_seconds, "embedding", "fp32"),
        Family("fused-embedding", _LOOKUPS, fused_embedding_seconds, "embedding", "fp32"),
        Family(
            "fused-embedding-backward",
            _LOOKUPS,
            fused_embedding_backward_seconds,
            "embedding",
            "fp32",
        ),
        Family("softmax", _rows(2.0), row_seconds, "softmax"),
        Family("softmax-backward", _rows(3.0), row_seconds, "softmax"),
        Family("norm", _rows(2.0), row_seconds, "norm"),
        Family("norm-backward", _rows(4.0), row_seconds, "norm"),
        Family("activation", _rows(3.0), row_seconds, "activation"),
        Family("elementwise", _MOVED, streaming_seconds, "elementwise"),
        Family("reduction", _MOVED, streaming_seconds, "elementwise"),
        Family("copy", _MOVED, streaming_seconds, "elementwise"),
        Family("strided", _STRIDED, strided_seconds, "elementwise"),
        Family("concat", _MOVED, streaming_seconds, "elementwise"),
        Family("optimizer", _MOVED, streaming_seconds, "elementwise"),
    )
}
