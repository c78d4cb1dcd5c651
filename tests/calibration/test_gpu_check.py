"""``weft gpu-check`` on a stand-in: two CPU ranks in the place of GPUs."""

import hashlib
import json
import os
import subprocess
import sys
import zlib
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

from weft.calibration.gpu_check.check_cases import (
    CheckCase,
    cases_of,
    digest,
    error_table,
    predictions,
)
from weft.calibration.gpu_check.gpu_platform import checked_platform, machine_of
from weft.calibration.gpu_check.torch_check_device import disagreements
from weft.calibration.gpu_check.torch_collective_checks import CASES, CHECKSUMS, COUNT
from weft.cli import main
from weft.errors import UsageError
from weft.hardware import platform, platform_from_table
from weft.planner.prices import Prices
from weft.schedule import Cost
from weft.step import Collective

pytestmark = pytest.mark.torch


def given(rank, count):
    at = np.arange(count)
    return ((at * 31 + rank * 17 + at // 5 * rank) % 16).astype(np.float32)


def by_numpy(kind, rank, n):
    """What MPI says of each collective, written anew."""
    whole, part = [given(r, COUNT * n) for r in range(n)], [given(r, COUNT) for r in range(n)]
    mine = slice(rank * COUNT, (rank + 1) * COUNT)
    return {
        "all_reduce": lambda: np.sum(part, axis=0),
        "all_gather": lambda: np.concatenate(part),
        "reduce_scatter": lambda: np.sum(whole, axis=0)[mine],
        "all_to_all": lambda: np.concatenate([each[mine] for each in whole]),
        "broadcast": lambda: part[n - 1],
        "send_recv": lambda: part[rank - 1],
    }[kind]()


@pytest.mark.parametrize("num_ranks", [1, 2, 4, 8])
@pytest.mark.parametrize("kind", CASES)
def test_stored_expectations_are_what_numpy_computes(kind, num_ranks):
    found = 0
    for rank in range(num_ranks):
        values = np.ascontiguousarray(by_numpy(kind, rank, num_ranks), np.float32)
        found = zlib.crc32(values.tobytes(), found)
    assert CHECKSUMS[kind, num_ranks] == found


@pytest.mark.multiprocess
@pytest.mark.triton
@pytest.mark.timeout(170)
def test_a_check_without_gpus_runs_what_needs_none_and_leaves_one_file(tmp_path):
    path = tmp_path / "result.jsonl"
    command = ["-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone"]
    done = subprocess.run(
        [sys.executable, "-W", "ignore", *command, "-m", "weft", "gpu-check", "-o", str(path)],
        capture_output=True,
        text=True,
        timeout=160,
        check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stderr.count("no GPU here") == 1
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    first = lines[0]
    assert first["part"] == "predictions"
    text = json.dumps(first["seconds"], sort_keys=True)
    assert first["sha256"] == hashlib.sha256(text.encode()).hexdigest()
    assert first["sha256"] in done.stdout
    checks = [line for line in lines if line["part"] == "correctness"]
    assert {line["case"].split()[0] for line in checks} >= {*CASES, "embedding", "GEMV", "GEMM"}
    assert all(line["passed"] for line in checks)
    errors = {line["case"]: line for line in lines if line["part"] == "errors"}
    assert {*first["seconds"]} == {*errors}
    assert all(line["measured"] > 0 for line in errors.values())
    # What was measured, prediction uses: cases that were not held out are met.
    calibrated = [e for e in errors.values() if e["group"] == "collective" and not e["held_out"]]
    assert all(abs(each["calibrated_error"]) < 0.01 for each in calibrated)
    assert main(["predict", "gpt2", "--on", str(path.with_suffix(".toml")), "--json"]) == 0


CASE = CheckCase((4096, 4096, 4096))
EXCHANGE = CheckCase(collective="all_gather", nbytes=64 << 20)
HELD = CheckCase(collective="all_gather", nbytes=96 << 20, held_out=True)


def checked(measured):
    below = platform("h100-8")
    cases = [CASE, EXCHANGE, HELD]
    before = predictions(cases, below, 8)
    copies: list[dict[str, Any]] = [
        {"case": "copy to one peer", "nbytes": 64 << 20, "seconds": 2e-4},
        {"case": "copy to host", "nbytes": 64 << 20, "seconds": 1.3e-3},
        {"case": "carve-outs", "skipped": "needs a GPU"},
    ]
    launch = {"host": 4e-6, "device": 2e-6}
    return checked_platform(below, cases, measured, before, launch, copies, source="by weft test")


def test_the_platform_of_a_check_is_what_prediction_uses():
    found = checked({CASE.name: 3e-4, EXCHANGE.name: 5e-4, HELD.name: 1.0})
    prices = Prices(found)
    assert prices.kernel(Cost("gemm", (4096, 4096, 4096), "bf16")) == pytest.approx(3e-4, rel=1e-4)
    ranks = tuple(range(8))
    seen = Collective("all_gather", 64 << 20)
    assert prices.collective(seen, ranks) == pytest.approx(5e-4, rel=1e-4)
    assert found.recorded is not None
    assert found.recorded.collectives[0].nbytes == 64 << 20
    device = found.require_device()
    assert (device.host_launch, device.launch) == (4e-6, 2e-6)
    assert device.require_dma().engine_rate == pytest.approx((64 << 20) / 2e-4, rel=1e-4)
    assert found.host is not None
    assert found.host.link_rate == pytest.approx((64 << 20) / 1.3e-3, rel=1e-4)
    # The case held out was measured at one second; nothing of it is in the file.
    assert prices.collective(Collective("all_gather", 96 << 20), ranks) < 0.01
    again = platform_from_table(found.to_table(), "again")
    assert again.recorded == found.recorded


def test_predictions_have_one_hash_and_errors_one_sign():
    before, after = {CASE.name: 2.0, EXCHANGE.name: None}, {CASE.name: 1.0, EXCHANGE.name: 3.0}
    one, other = error_table(
        [CASE, EXCHANGE, HELD], before, after, {CASE.name: 1, EXCHANGE.name: 2}
    )
    assert (one["predicted_error"], one["calibrated_error"]) == (1.0, 0.0)
    assert (other["predicted_error"], other["calibrated_error"]) == (None, 0.5)
    assert digest(before) != digest(after)


def test_cases_for_gpus_are_all_predicted_on_machines_of_the_catalogue():
    for name in ("h100-8", "mi300x-8", "b200-8"):
        found = predictions(cases_of(8, 1.0), platform(name), 8)
        missing = [case for case, seconds in found.items() if not seconds]
        assert all("tf32" in case for case in missing), (name, missing)


def fact(rank, nccl="2.28.9", device="H100", not_peers=()):
    device = {"name": device, "not_peers": list(not_peers)}
    return {"rank": rank, "software": {"torch": "2.13.0", "nccl": nccl}, "device": device}


def test_ranks_that_differ_are_named():
    assert disagreements([fact(0), fact(1)]) == []
    (said,) = disagreements([fact(0), fact(1), fact(2, nccl="2.27.3")])
    assert said == "nccl: 2.27.3 on ranks [2], 2.28.9 on ranks [0, 1]"
    (said,) = disagreements([fact(0), fact(1, not_peers=[3])])
    assert said == "rank 1 has no peer access to devices [3]"
    assert disagreements([fact(0), fact(1, device="A100")])


def test_a_device_that_nobody_knows_is_refused_with_the_way_out():
    with pytest.raises(UsageError, match="Frobnicator") as caught:
        machine_of("Frobnicator 9000", 8, None, is_gpu=True)
    assert "--on" in caught.value.hint
    assert machine_of("NVIDIA H100 80GB HBM3", 8, None, is_gpu=True).name == "h100-8"
    assert machine_of("AMD Instinct MI300X", 4, None, is_gpu=True).num_ranks == 4


def test_a_platform_of_gpus_needs_a_file_to_be_written_to(capsys):
    assert main(["calibrate", "--on-gpu"]) == 2
    assert "-o machine.toml" in capsys.readouterr().err
