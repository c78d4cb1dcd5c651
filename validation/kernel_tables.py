"""Measured tables of kernels, read where they lie: nothing of them is part of this package."""

import csv
import gzip
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from validation.nccl_tables import SOURCE
from weft.cost.families import FAMILIES, Family
from weft.hardware import Device, Flops, platform
from weft.hardware.dtypes import known_dtype, scheme_of

Floats = NDArray[np.float64]
Mask = NDArray[np.bool_]
Rows = Iterable[Mapping[str, str]]

SYSTEMS = {"a100": "a100_sxm", "h100": "h100_sxm", "b200": "b200_sxm", "l40s": "l40s"}
# Devices with a fit of their own whose tables also tell how far the fits of a sibling are off. No
# cost model of other devices is fitted to them.
FITTED_SIBLINGS = ("gb200",)
_TENTH, _SHAPE, _FIFTHS = 10, 10, 5  # one row of ten is held back, one shape of ten
# Formulas and grids were chosen with other parts held back: these two were not looked at before.
_HELD_ROWS, _HELD_SHAPES = 2611, 2612


@dataclass(frozen=True, slots=True)
class Study:
    """What was measured of one family and dtype on one device, one kernel a row.

    ``shape`` names the columns that make a shape: rows of one shape are held back together.
    """

    family: str
    device: Device
    dtype: str
    columns: dict[str, Floats]
    seconds: Floats
    shape: tuple[str, ...]
    source: str = SOURCE
    implementation: str = ""
    version: str = ""

    @property
    def kind(self) -> Family:
        """The family with its formula."""
        return FAMILIES[self.family]

    @property
    def places(self) -> dict[str, Floats]:
        """What corrections look at: the columns and what the family derives from them."""
        return {**self.columns, **self.kind.places(self.columns)}

    def predicted(self, coefficients: Mapping[str, float]) -> Floats:
        """Predict the seconds of every row, without correction, as the table counts it.

        Tables of a framework count what a call takes: the kernel, or the host that launches it,
        ``call`` seconds, whichever is longer; ``side`` says how well they run side by side.
        """
        kernel = self.kind.formula(self.columns, self.device, scheme_of(self.dtype), coefficients)
        if "call" not in coefficients:
            return kernel
        power = coefficients["side"]
        both: Floats = (coefficients["call"] ** power + kernel**power) ** (1 / power)
        return both

    def part(self, rows: Mask | NDArray[np.int64]) -> "Study":
        """Keep some rows."""
        columns = {key: values[rows] for key, values in self.columns.items()}
        return replace(self, columns=columns, seconds=self.seconds[rows])

    def sample(self, most: int) -> "Study":
        """Keep ``most`` rows at most, the same random ones every time."""
        if len(self.seconds) <= most:
            return self
        drawn = np.random.default_rng(0).permutation(len(self.seconds))[:most]
        return self.part(np.sort(drawn))

    @property
    def tenth(self) -> Mask:
        """A random tenth of the rows, always the same."""
        held: Mask = np.random.default_rng(_HELD_ROWS).integers(0, _TENTH, len(self.seconds)) == 0
        return held

    @property
    def tenth_of_shapes(self) -> Mask:
        """The rows of a random tenth of the shapes, always the same."""
        held: Mask = self.random_shapes(_HELD_SHAPES, _SHAPE) == 0
        return held

    @property
    def fifths_of_shapes(self) -> list[Mask]:
        """The rows of each of five parts of the shapes, drawn the same way every time."""
        drawn = self.random_shapes(_HELD_SHAPES + 2, _FIFTHS)
        return [found for part in range(_FIFTHS) if (found := drawn == part).any()]

    @property
    def num_shapes(self) -> int:
        """How many shapes there are."""
        return int(self._shapes.max()) + 1

    def random_shapes(self, seed: int, parts: int) -> NDArray[np.int64]:
        """Return the part in which the shape of every row is, of so many random ones."""
        drawn: NDArray[np.int64] = np.random.default_rng(seed).integers(0, parts, self.num_shapes)
        return drawn[self._shapes]

    @property
    def _shapes(self) -> NDArray[np.int64]:
        names = np.stack([self.columns[key] for key in self.shape], axis=1)
        number = np.unique(names, axis=0, return_inverse=True)[1]
        return number.ravel()


def study(
    family: str,
    device: Device,
    dtype: str,
    columns: Mapping[str, Floats],
    seconds: Floats,
    shape: tuple[str, ...],
    source: str = SOURCE,
    implementation: str = "",
) -> Study:
    """Make a Study, with the columns that were not measured as they are if not given."""
    full = {
        key: np.broadcast_to(np.asarray(columns.get(key, default), float), seconds.shape)
        for key, default in FAMILIES[family].columns.items()
    }
    return Study(family, device, dtype, full, seconds, shape, source, implementation)


def rows_of(path: Path) -> Iterator[dict[str, str]]:
    """Read the rows of a table."""
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        yield from csv.DictReader(lines)


@lru_cache
def gemm_studies(folder: Path, name: str) -> tuple[Study, ...]:
    """Read the matrix products of a device, one Study a dtype, but for rows without tokens."""
    system = SYSTEMS.get(name, name)
    path = next((folder / "aiconfigurator" / system / "gemm").glob("*.csv.gz"))
    by_dtype: dict[str, list[tuple[float, ...]]] = {}
    for row in rows_of(path):
        if int(row["m"]) > 0:
            cells = tuple(float(row[key]) for key in ("m", "n", "k", "latency"))
            by_dtype.setdefault(row["gemm_dtype"], []).append(cells)
    found = []
    for dtype, rows in by_dtype.items():
        m, n, k, milliseconds = np.array(rows).T
        columns = {"m": m, "n": n, "k": k}
        kernels = study(
            "gemm", device(name), known_dtype(dtype), columns, milliseconds / 1e3, ("n", "k")
        )
        found.append(replace(kernels, version=_version(path)))
    return tuple(found)


def _version(path: Path) -> str:
    """Return the server and its release that a table is of, from the name of its file."""
    return " ".join(path.name.split("_")[:2])


def attention_studies(folder: Path, name: str) -> tuple[Study, ...]:
    """Read attention of a device: prefill by the dtype of its products, and decoding."""
    tables = folder / "aiconfigurator" / SYSTEMS[name] / "attention"
    found = []
    for what in ("context", "generation"):
        by_dtype: dict[str, list[dict[str, str]]] = {}
        path = next(tables.glob(f"*_{what}_attention_perf.csv.gz"))
        for row in rows_of(path):
            by_dtype.setdefault(row["attn_dtype"], []).append(row)
        for dtype, rows in by_dtype.items():
            version = _version(path)
            kernels = _attention(device(name), known_dtype(dtype), rows, what, version.split()[0])
            found.append(replace(kernels, version=version))
    return tuple(found)


def _attention(on: Device, dtype: str, rows: list[dict[str, str]], what: str, server: str) -> Study:
    def column(key: str) -> Floats:
        return np.array([float(row.get(key, "0")) for row in rows])

    columns = {
        "batch": column("batch_size"),
        "heads": column("num_heads"),
        "kv_heads": column("num_key_value_heads"),
        "head_dim": column("head_dim"),
        "window": column("window_size"),
        "kv_bytes": np.array([1.0 if row["kv_cache_dtype"] == "fp8" else 2.0 for row in rows]),
        "queries": column("isl"),
        "keys": column("isl") + column("step"),
    }
    shape = ("heads", "kv_heads", "head_dim", "window", "kv_bytes")
    family = "attention" if what == "context" else "decode"
    found = study(family, on, dtype, columns, column("latency") / 1e3, shape)
    if what == "context" or server != "trtllm":
        return found
    # Its benchmark reserves a cache for keys alone (collector/trtllm/collect_attn.py: SELFKONLY),
    # so values lie in the pages of the keys. Kernels of shared keys read them close together, the
    # second time from the L2: their rows reach 6.1 TB/s, twice the 3.05 of the others, which have
    # read all keys before the first value.
    reads = np.where(columns["heads"] > columns["kv_heads"], 1.0, 2.0)
    return replace(found, columns={**found.columns, "reads": reads})


def moe_studies(folder: Path, name: str) -> tuple[Study, ...]:
    """Read the experts of a device, one Study a dtype."""
    tables = folder / "aiconfigurator" / SYSTEMS[name] / "moe"
    names = {"tokens": "num_tokens", "hidden": "hidden_size", "inter": "inter_size", "topk": "topk"}
    names |= {"experts": "num_experts", "tp": "moe_tp_size", "ep": "moe_ep_size"}
    by_dtype: dict[str, list[dict[str, str]]] = {}
    path = next(tables.glob("*_moe_perf.csv.gz"))
    for row in rows_of(path):
        by_dtype.setdefault(row["moe_dtype"], []).append(row)
    found = []
    for dtype, rows in by_dtype.items():
        columns = {key: np.array([float(r[there]) for r in rows]) for key, there in names.items()}
        skew = [r["distribution"].removeprefix("power_law_") for r in rows]
        columns["skew"] = np.array([0.0 if each == "balanced" else float(each) for each in skew])
        seconds = np.array([float(r["latency"]) for r in rows]) / 1e3
        shape = ("hidden", "inter", "topk", "experts", "tp", "ep", "skew")
        kernels = study("moe", device(name), known_dtype(dtype), columns, seconds, shape)
        found.append(replace(kernels, version=_version(path)))
    return tuple(found)


def by_sibling(device: Device) -> Device:
    """Return a device as it is priced where only its sibling was measured."""
    return replace(device, name=f"{device.name} by {device.like}")


@lru_cache
def device(name: str) -> Device:
    """Return a device of the tables as its datasheet has it: nothing of it was measured."""
    found = platform("gb200-nvl72" if name == "gb200" else f"{name}-8").require_device()
    return replace(found, flops={key: Flops(f.rated, f.rated) for key, f in found.flops.items()})
