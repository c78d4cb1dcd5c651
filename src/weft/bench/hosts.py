"""How much of communication between hosts hides behind a GEMM, and collectives of several hosts."""

import json
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Any

from weft.bench.exchanges import KINDS
from weft.bench.namespaces import NetHost, two_hosts
from weft.bench.rows import Options, Peer, Row
from weft.errors import RunError

QUESTION = "How much of an all-gather between hosts hides behind a GEMM?"
RATE = 1e9 / 8  # bytes a second: 1 Gbit/s
RATIOS = (2.0, 1.0, 0.5)  # communication / GEMM, both alone
SIZES = (64 << 10, 1 << 20, 16 << 20)
GATHERED = 16 << 20  # bytes of each rank that are gathered beside the GEMM
_DEADLINE = 300.0  # seconds for one case


def run(options: Options) -> Iterator[Row]:
    """Measure overlap with one rank a host, then collectives with two; weft and Gloo in turn."""
    for rate in options.rates or (RATE,):
        with two_hosts(rate) as hosts:
            for ratio in RATIOS:
                yield _overlap(hosts, rate, ratio, options.rounds)
            for nbytes in options.sizes or SIZES:
                for kind in KINDS:
                    yield _collective(hosts, rate, kind, nbytes, options.rounds)


def _overlap(hosts: tuple[NetHost, NetHost], rate: float, ratio: float, rounds: int) -> Row:
    job = {"what": "overlap", "nbytes": GATHERED, "ratio": ratio, "rounds": rounds}
    found = on_hosts(hosts, 1, job)
    shares = {name: [_share(times) for times in found[name]] for name in ("weft", "gloo")}
    concurrent = {name: [times["concurrent"] for times in found[name]] for name in found}
    figures: dict[str, Any] = {
        "share_of_ideal": median(shares["weft"]),
        "gloo_share_of_ideal": median(shares["gloo"]),
    }
    for name in ("gemm", "all_gather", "serial"):
        figures[f"{name}_seconds"] = median(times[name] for times in found["weft"])
    figures["gloo_all_gather_seconds"] = median(times["all_gather"] for times in found["gloo"])
    case = {
        "collective": "gemm+all_gather",
        "ranks": 2,
        "hosts": 2,
        "nbytes": 2 * GATHERED,
        "link": f"{8 * rate / 1e9:g} Gbit/s",
        "comm_per_gemm": ratio,
    }
    peers = {"gloo": _beside(concurrent["gloo"], concurrent["weft"])}
    return Row("hosts", case, tuple(concurrent["weft"]), peers, figures)


def _share(times: Mapping[str, float]) -> float:
    """Give the share of the possible gain that was realised (1 if all, 0 as if in turn)."""
    serial = times["gemm"] + times["all_gather"]
    ideal = max(times["gemm"], times["all_gather"])
    return (serial / times["concurrent"] - 1) / (serial / ideal - 1)


def _collective(
    hosts: tuple[NetHost, NetHost], rate: float, kind: str, nbytes: int, rounds: int
) -> Row:
    job = {"what": "collective", "kind": kind, "nbytes": nbytes, "rounds": rounds}
    found = on_hosts(hosts, 2, job)
    case = {
        "collective": kind,
        "ranks": 4,
        "hosts": 2,
        "nbytes": nbytes,
        "link": f"{8 * rate / 1e9:g} Gbit/s",
    }
    peers = {"gloo": _beside(found["gloo"], found["weft"])}
    return Row("hosts", case, tuple(found["weft"]), peers, {"wrong": found["wrong"]})


def _beside(theirs: list[float], mine: list[float]) -> Peer:
    return Peer(median(theirs), median(their / my for their, my in zip(theirs, mine, strict=True)))


def on_hosts(hosts: tuple[NetHost, NetHost], ranks_each: int, job: dict[str, Any]) -> Any:
    """Let ranks on every host do a job; give what rank 0 found."""
    with tempfile.TemporaryDirectory() as folder, ExitStack() as started:
        answer, port = Path(folder) / "answer.json", _free_port()
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
            arguments = [sys.executable, "-m", "weft.bench.torch_hosts", json.dumps(job)]
            process = subprocess.Popen(host.command([*arguments, str(answer)]), env=environment)
            started.callback(_end, process)
            processes.append(process)
        _wait_for(processes)
        return json.loads(answer.read_text(encoding="utf-8"))


def _wait_for(processes: list["subprocess.Popen[bytes]"]) -> None:
    for rank, process in enumerate(processes):
        if code := process.wait(_DEADLINE):
            raise RunError(f"rank {rank} of the benchmark ended with {code}.")


def _end(process: "subprocess.Popen[bytes]") -> None:
    process.kill()
    process.wait()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("", 0))
        return int(probe.getsockname()[1])
