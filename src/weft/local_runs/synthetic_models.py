"""Sizes of models that are small enough to be trained here: DLRMs and transformers."""

from dataclasses import asdict, dataclass
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


def case_of(model: SyntheticModel) -> dict[str, Any]:
    """Return a model as a case of a row, and as ranks are asked for it."""
    return asdict(model)


def model_of(case: dict[str, Any]) -> SyntheticModel:
    """Parse what ``case_of`` returned, also after a JSON round trip."""
    if case["model"] != "dlrm":
        return SyntheticTransformer(**case)
    lists = {key: tuple(case[key]) for key in ("bottom", "top")}
    tables = tuple((int(r), int(p), float(z)) for r, p, z in case["tables"])
    return SyntheticDlrm(**{**case, **lists, "tables": tables})
