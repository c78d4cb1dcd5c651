"""Measured tables of NCCL, read where they lie: nothing of them is part of this package.

The environment variable ``WEFT_DATA`` names the folder.
"""

import csv
import gzip
import os
import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from weft.hardware.libraries import version_key

TABLES = {"a100": "a100_sxm", "h100": "h100_sxm", "b200": "b200_sxm", "l40s": "l40s"}
"""Devices with a table, and the system that each is called after there."""

NODES = {"l40s": "l40s-8-nop2p", "gb200": "gb200-nvl72"}
"""Machines of the catalogue that tables were measured on, where not ``DEVICE-8``."""


def node_of(device: str) -> str:
    """Return the machine of the catalogue that tables of a device were measured on."""
    return NODES.get(device, f"{device}-8")


SOURCE = "NVIDIA's tables, ai-dynamo/aiconfigurator @095f58a51c4c, Apache-2.0"

_ITEM_BYTES = {"half": 2, "int8": 1}
_NAMES = {"alltoall": "all_to_all", "alltoall_perf": "all_to_all"}
_LINE = re.compile(r"\s*(\d+)\s+\d+\s+\w+\s+(?:\w+\s+)?(?:-?\d+\s+)?([\d.]+)\s+[\d.]+\s+[\d.]+\s")


@dataclass(frozen=True, slots=True)
class Cell:
    """One measured time: the median of its repetitions in a table."""

    version: str
    collective: str
    dtype: str
    num_ranks: int
    nbytes: int
    seconds: float


def data_folder() -> Path | None:
    """Find the folder of measured data, if there is one here."""
    folder = os.environ.get("WEFT_DATA")
    return Path(folder) if folder and Path(folder, "aiconfigurator").is_dir() else None


def read_cells(folder: Path, system: str) -> tuple[Cell, ...]:
    """Read the tables of all versions on a system, such as ``h100_sxm``."""
    files = (folder / "aiconfigurator" / system / "comm").glob("nccl_*_nccl_perf.csv.gz")
    found = {path.name.split("_")[1]: path for path in files}
    ordered = sorted(found, key=version_key)
    return tuple(cell for version in ordered for cell in _read_table(found[version], version))


SERVERS = ("sglang", "trtllm", "vllm")
"""Inference servers with all-reduces of their own, by their names in the tables."""

SERVER_TABLES = TABLES | {"gb200": "gb200"}
# Tables that are not of a server's kernels on the machine of its other versions. SGLang 0.5.6 and,
# on L40S, 0.5.9 name TensorRT-LLM as source. With SGLang 0.5.12 four L40S move 21 GB/s where all
# others move 4, so their peers reach each other. Two GB200 move 1 GiB in 1.8 or in 5.2 ms: they are
# two machines, SGLang 0.5.9 and vLLM 0.14 are alone on theirs. Found by looking at the errors.
_OTHERS = {
    ("h100_sxm", "sglang", "0.5.6.post2"),
    ("l40s", "sglang", "0.5.9"),
    ("l40s", "sglang", "0.5.12"),
    ("gb200", "sglang", "0.5.9"),
    ("gb200", "vllm", "0.14.0"),
}


def read_server_cells(folder: Path, system: str, server: str) -> tuple[Cell, ...]:
    """Read the all-reduces of a server in CUDA graphs, in all versions. Sizes count elements."""
    pattern = f"{server}_*_custom_allreduce_perf.csv.gz"
    files = (folder / "aiconfigurator" / system / "comm").glob(pattern)
    found = {path.name.split("_")[1]: path for path in files}
    cells = []
    for version in sorted(found, key=version_key):
        if (system, server, version) in _OTHERS:
            continue
        times = defaultdict(list)
        with gzip.open(found[version], "rt", encoding="utf-8") as lines:
            for row in csv.DictReader(lines):
                if "eager" not in row["kernel_source"]:
                    key = int(row["num_gpus"]), 2 * int(row["message_size"])
                    times[key].append(float(row["latency"]) * 1e-3)
        for (ranks, nbytes), seconds in sorted(times.items()):
            cells.append(Cell(version, "all_reduce", "half", ranks, nbytes, median(seconds)))
    return tuple(cells)


def _read_table(path: Path, version: str) -> Iterator[Cell]:
    """Read one table. Its sizes count elements, its times are milliseconds."""
    times = defaultdict(list)
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        for row in csv.DictReader(lines):
            nbytes = int(row["message_size"]) * _ITEM_BYTES[row["nccl_dtype"]]
            collective = _NAMES.get(row["op_name"], row["op_name"])
            key = collective, row["nccl_dtype"], int(row["num_gpus"]), nbytes
            times[key].append(float(row["latency"]) * 1e-3)
    for key, seconds in sorted(times.items()):
        yield Cell(version, *key, median(seconds))


def read_nccl_tests(
    path: Path, num_ranks: int, version: str, collective: str = ""
) -> Iterator[Cell]:
    """Read what nccl-tests printed: the out-of-place times of each collective of a log.

    Old logs do not say which ``collective`` they are of.
    """
    text = path.read_bytes()
    lines = (gzip.decompress(text) if path.suffix == ".gz" else text).decode().splitlines()
    for line in lines:
        if "Collective test starting:" in line:
            name = line.split()[-1]
            collective = _NAMES.get(name, name.removesuffix("_perf"))
        elif (match := _LINE.match(line)) and int(match[1]):
            yield Cell(version, collective, "", num_ranks, int(match[1]), float(match[2]) / 1e6)
