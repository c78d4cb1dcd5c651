"""Fit collectives of NCCL and of servers to measured tables; write the catalogue's library files.

    WEFT_DATA=folder python -m validation.fit_nccl [DEVICE..] [algorithms] [servers]

``algorithms`` are those between nodes, fitted to logs; ``servers`` all-reduces of vLLM, SGLang and
TensorRT-LLM. The tables stay where they are. The same
tables give the same files to the bit.
"""

import sys
from collections.abc import Iterator
from dataclasses import asdict
from itertools import product
from pathlib import Path
from typing import Any

from validation.nccl_algorithms_fit import fitted_algorithms
from validation.nccl_fit import fitted_library, fitted_server
from validation.nccl_tables import (
    SERVER_TABLES,
    SERVERS,
    TABLES,
    data_folder,
    node_of,
    read_cells,
)
from weft.hardware import platform
from weft.hardware.libraries import ALGORITHMS, FOLDER, Fit, Library
from weft.hardware.toml_text import to_toml

HEAD = "# Written by validation/fit_nccl.py. Curves are places (bytes, seconds).\n"


def main(devices: list[str]) -> int:
    """Write one file for each device, or say that there is no data."""
    folder = data_folder()
    if folder is None:
        print("the measured tables are not here: set WEFT_DATA to their folder", file=sys.stderr)
        return 1
    for device in devices or [*TABLES, "algorithms", "servers"]:
        if device == "algorithms":
            _write_algorithms(folder)
        elif device == "servers":
            for server, name in product(SERVERS, SERVER_TABLES):
                _write_library(fitted_server(folder, server, name))
        else:
            cells = read_cells(folder, TABLES[device])
            _write_library(fitted_library(cells, platform(node_of(device))))
    return 0


def _write_library(found: Library) -> None:
    path = FOLDER / f"{found.name}-{found.device}.toml"
    path.write_text(HEAD + to_toml(_table(found)), encoding="utf-8")
    print(f"wrote {path.name}: {len(found.fits)} fits")


def _write_algorithms(folder: Path) -> None:
    found = fitted_algorithms(folder)
    table = asdict(found)
    for part in ("fitted", "held_out"):
        table[part] = {kind: round(error, 4) for kind, error in table[part].items()}
    path = ALGORITHMS / f"{found.name}.toml"
    path.parent.mkdir(exist_ok=True)
    text = "# Written by validation/fit_nccl.py. See weft.cost.nccl_algorithms.\n" + to_toml(table)
    path.write_text(text, encoding="utf-8")
    print(f"wrote {path.name}: held out {table['held_out']}")


def _table(library: Library) -> dict[str, Any]:
    table = {key: value for key, value in asdict(library).items() if value != ""}
    return {**table, "fits": [dict(_entries(fit)) for fit in library.fits]}


def _entries(fit: Fit) -> Iterator[tuple[str, Any]]:
    for key, value in asdict(fit).items():
        if key == "errors":
            yield key, {k: round(v, 4) for k, v in value.items() if v is not None}
        elif isinstance(value, tuple):
            yield (
                key,
                [
                    [int(place[0]), place[1]] if isinstance(place, tuple) else place
                    for place in value
                ],
            )
        else:
            yield key, value


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
