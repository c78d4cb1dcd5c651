"""How much of communication between hosts hides behind a GEMM, and collectives of several hosts."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.collective_case import KINDS
from benchmarks.namespaces import NetHost, two_hosts
from benchmarks.rows import Options, Row
from weft.c3.scenarios import percent_of_ideal
from weft.errors import RunError, RunTimeoutError
from weft.local_runs.contest import PeerTiming
from weft.runtime.env_rendezvous import free_port

QUESTION = "How fast are collectives between hosts, and how much hides behind a GEMM?"
RATE = 1e9 / 8  # bytes a second: 1 Gbit/s
RATIOS = (2.0, 1.0, 0.5)  # communication / GEMM, both alone
SIZES = (64 << 10, 1 << 20, 16 << 20)
GATHERED = 16 << 20  # bytes of each rank that are gathered next to the GEMM
_DEADLINE = 300.0  # seconds for one case


def run(options: Options) -> Iterator[Row]:
    """Measure overlap with two ranks, collectives with four; weft and Gloo in turn."""
    for rate in options.rates or (RATE,):
        with two_hosts(rate) as hosts:
            link = f"{8 * rate / 1e9:g} Gbit/s"
            for ratio in RATIOS if 2 in (options.ranks or (2,)) else ():
                yield _overlap(hosts, link, ratio, options.rounds)
            if 4 in (options.ranks or (4,)):
                yield from _collectives(hosts, link, options.sizes or SIZES, options.rounds)


def _overlap(hosts: tuple[NetHost, NetHost], link: str, ratio: float, rounds: int) -> Row:
    """Measure a GEMM next to an all-gather; each contestant's GEMM is in ratio to his own."""
    job = {"what": "overlap", "nbytes": GATHERED, "ratio": ratio, "rounds": rounds}
    found = on_hosts(hosts, 1, job)
    figures: dict[str, Any] = {}
    for name, times in found.items():
        whose = "" if name == "weft" else f"{name}_"
        figures[f"{whose}share_of_ideal"] = median(map(_share, times))
        for part in ("gemm", "all_gather", "serial", "concurrent"):
            figures[f"{whose}{part}_seconds"] = median(each[part] for each in times)
    case = {
        "collective": "gemm+all_gather",
        "ranks": 2,
        "hosts": 2,
        "nbytes": 2 * GATHERED,
        "link": link,
        "comm_per_gemm": ratio,
    }
    return Row("hosts", case, tuple(each["concurrent"] for each in found["weft"]), {}, figures)


def _share(times: Mapping[str, float]) -> float:
    """Return the share of the possible gain that was realised (1 if all, 0 as if in turn)."""
    parts = times["gemm"], times["all_gather"]
    return percent_of_ideal(sum(parts), max(parts), times["concurrent"]) / 100


def _collectives(
    hosts: tuple[NetHost, NetHost], link: str, sizes: tuple[int, ...], rounds: int
) -> Iterator[Row]:
    asked = [{"kind": kind, "nbytes": nbytes} for nbytes in sizes for kind in KINDS]
    job = {"what": "collectives", "asked": asked, "rounds": rounds}
    for each in on_hosts(hosts, 2, job):
        case = {
            "collective": each["kind"],
            "ranks": 4,
            "hosts": 2,
            "nbytes": each["nbytes"],
            "link": link,
        }
        peers = {"gloo": PeerTiming.of(each["gloo"], each["weft"])}
        yield Row("hosts", case, tuple(each["weft"]), peers, {"wrong": each["wrong"]})


def on_hosts(hosts: Sequence[NetHost], ranks_each: int, job: dict[str, Any]) -> Any:
    """Run a job on ranks of every host and return the result of rank 0."""
    with tempfile.TemporaryDirectory() as folder, ExitStack() as started:
        answer, port = Path(folder) / "answer.json", free_port()
        processes = []
        for rank in range(len(hosts) * ranks_each):
            host = hosts[rank // ranks_each]
            environment = {
                **os.environ,
                **host.environment,
                "RANK": str(rank),
                "WORLD_SIZE": str(len(hosts) * ranks_each),
                "MASTER_ADDR": hosts[0].address,
                "MASTER_PORT": str(port),
                "OMP_NUM_THREADS": "1",
            }
            arguments = [sys.executable, "-m", "benchmarks.torch_hosts", json.dumps(job)]
            process = subprocess.Popen(host.command([*arguments, str(answer)]), env=environment)
            started.callback(_end, process)
            processes.append(process)
        _wait_for(processes)
        return json.loads(answer.read_text(encoding="utf-8"))


def _wait_for(processes: list["subprocess.Popen[bytes]"]) -> None:
    for rank, process in enumerate(processes):
        try:
            code = process.wait(_DEADLINE)
        except subprocess.TimeoutExpired as error:
            late = f"rank {rank} of the benchmark did not end in {_DEADLINE:g} s."
            raise RunTimeoutError(late) from error
        if code:
            raise RunError(f"rank {rank} of the benchmark ended with {code}.")


def _end(process: "subprocess.Popen[bytes]") -> None:
    process.kill()
    process.wait()
