"""Sizes of models that are small enough to be trained here: DLRMs and transformers."""

from dataclasses import dataclass
from typing import Any

RANKS = 2


@dataclass(frozen=True)
class SyntheticDlrm:
    """A DLRM: tables of (rows, pooling, zipf) of one dim, MLPs, samples of the whole job."""

    tables: tuple[tuple[int, int, float], ...]
    dim: int
    bottom: tuple[int, ...]
    top: tuple[int, ...]
    batch: int
    seed: int = 0
    model: str = "dlrm"


@dataclass(frozen=True)
class SyntheticTransformer:
    """A transformer: its sizes, and the sequences of the whole job."""

    model: str
    hidden: int
    layers: int
    heads: int
    ffn: int
    vocab: int
    seq: int
    batch: int
    kv_heads: int = 0
    seed: int = 0


SyntheticModel = SyntheticDlrm | SyntheticTransformer


def model_of(case: dict[str, Any]) -> SyntheticModel:
    """Build the model that ``asdict`` made a case of, also after a JSON round trip."""
    if case["model"] != "dlrm":
        return SyntheticTransformer(**case)
    lists = {key: tuple(case[key]) for key in ("bottom", "top")}
    tables = tuple((int(r), int(p), float(z)) for r, p, z in case["tables"])
    return SyntheticDlrm(**{**case, **lists, "tables": tables})
