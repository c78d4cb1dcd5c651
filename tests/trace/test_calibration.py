"""A platform from a trace: overheads, rates, collectives and slow-downs of the user's machine."""

import json
from dataclasses import replace

import pytest

from tests.trace.events import all_reduce, event, job, kernel, launch, mark, written
from weft.cli import main
from weft.errors import PlatformError, UsageError
from weft.hardware import platform, platform_from_table
from weft.planner.prices import Prices
from weft.schedule import Cost
from weft.step import Collective, HostModel, Op
from weft.step.durations import host_of
from weft.trace import read
from weft.trace.analysis.trace_calibration import _outermost, calibrated_from


def steps(count=6):
    """Steps of one product each: 10 us to its launch, 3 us for it, 7 us behind it, 20 between."""
    events = []
    shape = {"Input Dims": [[64, 128], [128, 256]], "Input type": ["c10::Half", "c10::Half"]}
    for step in range(count):
        at = 1000 * step
        events += [
            mark(step, at, 990),
            event("aten::relu", "cpu_op", at + 10, 20, 1),
            event("aten::mm", "cpu_op", at + 50, 20, 1, **shape),
            event("cudaLaunchKernel", "cuda_runtime", at + 60, 3, 1, correlation=2 * step),
            kernel(at + 65, 10, "ampere_fp16_s16816gemm", 7, 2 * step),
            launch(at + 100, 2 * step + 1),
            all_reduce(at + 103, 300 - 10 * step, 2 * step + 1, 1 << 20),
            event("Memcpy HtoD (Pinned -> Device)", "gpu_memcpy", at + 600, 100, 9, bytes=1 << 21),
        ]
    return events


def test_what_a_trace_shows_stands_in_the_platform(tmp_path):
    found = calibrated_from([written(tmp_path / "a.json", steps())])
    assert found.name == "a100-8-traced"
    assert found.recorded is not None
    mm = found.recorded.host["aten::mm"]
    assert mm.count == 6
    seconds = (mm.between, mm.before, mm.launch, mm.after, mm.inside)
    assert seconds == pytest.approx((20e-6, 10e-6, 3e-6, 7e-6, 0))
    assert found.recorded.host["all"] == mm
    assert found.require_device().host_launch == pytest.approx(3e-6)
    assert found.require_device().launch == pytest.approx(2e-6)
    assert found.recorded.products["fp16"].best == pytest.approx(419.43e9, rel=1e-3)
    assert found.host is not None
    assert found.host.link_rate == pytest.approx((1 << 21) / 100e-6, rel=1e-3)
    (exchange,) = found.recorded.collectives
    assert (exchange.kind, exchange.nbytes, exchange.ranks) == ("all_reduce", 1 << 22, 2)
    assert exchange.seconds == pytest.approx(250e-6)
    assert found.sources["recorded.collectives.0.seconds"].basis == "derived"


def test_prediction_uses_what_a_trace_showed(tmp_path):
    traced = calibrated_from([written(tmp_path / "a.json", steps())])
    below = platform("a100-8")
    recorded = traced.recorded
    assert recorded is not None
    before, after = Prices(below), Prices(traced)
    product = Cost("gemm", (64, 256, 128), "fp16")
    assert after.kernel(product) == pytest.approx(10e-6, rel=1e-3)  # as the trace has it
    other = Cost("gemm", (4096, 4096, 4096), "fp16")
    share = recorded.products["fp16"].share
    assert after.kernel(other) == pytest.approx(share * before.kernel(other))
    assert after.kernel(replace(other, dtype="bf16")) == before.kernel(replace(other, dtype="bf16"))
    seen = Collective("all_reduce", 1 << 22)
    assert after.collective(seen, (0, 1)) == pytest.approx(250e-6, rel=1e-3)
    larger = Collective("all_reduce", 1 << 24)
    ratio = after.collective(seen, (0, 1)) / before.collective(seen, (0, 1))
    assert after.collective(larger, (0, 1)) == pytest.approx(
        ratio * before.collective(larger, (0, 1))
    )
    unseen = (Collective("all_reduce", 1 << 22), (0, 1, 2, 3))
    assert after.collective(*unseen) == before.collective(*unseen)
    op = Op("mm", cost=product)
    assert host_of(traced).seconds(op) == pytest.approx(37e-6)
    assert host_of(below).seconds(op) == HostModel().seconds(op)


def test_every_recorded_number_changes_a_prediction(tmp_path):
    """Nothing is written that nothing reads: each key is a product, a collective, a host's."""
    traced = calibrated_from([written(tmp_path / "a.json", steps())])
    keys = {key for key, each in traced.sources.items() if "by weft calibrate" in each.source}
    parts = {".".join(key.split(".")[:2]) for key in keys}
    assert parts == {
        *("recorded.host", "recorded.products", "recorded.collectives"),
        *("device.host_launch", "device.launch", "host.link_rate"),
    }


def test_files_with_rates_that_are_no_longer_used_still_load(tmp_path):
    table = platform("a100-8").to_table()
    old = {"value": 1.5, "basis": "achieved", "source": "weft calibrate"}
    table["recorded"] = {"slowdowns": {"GEMM": {"count": old, "median": old, "weighted": old}}}
    assert platform_from_table(table, "old").recorded is not None


def test_deep_nesting_costs_nothing(tmp_path):
    count = 50_000
    nested = [event("op", "cpu_op", i, 2 * (count - i), 1) for i in range(count)]
    events = [*nested, launch(count, 1), kernel(count + 5, 5, correlation=1)]
    found = _outermost(read(written(tmp_path / "a.json", events)))
    assert set(found[: count + 1].tolist()) == {0}


def test_several_ranks_show_what_moving_took(tmp_path):
    found = calibrated_from(job(tmp_path, (200.0, 700.0)))
    assert found.recorded is not None
    (exchange,) = found.recorded.collectives
    assert exchange.seconds == pytest.approx(200e-6)
    assert found.sources["recorded.collectives.0.seconds"].basis == "achieved"


def test_a_calibration_from_a_trace_is_a_file_that_can_be_used(tmp_path, capsys):
    trace = written(tmp_path / "a.json", steps())
    path = tmp_path / "machine.toml"
    assert main(["calibrate", "--from", str(trace), "-o", str(path)]) == 0
    assert "aten::mm" in capsys.readouterr().out
    again = platform(path)
    assert again.recorded == platform_from_table(again.to_table(), "x").recorded
    assert main(["collective", "all_reduce", "--on", str(path), "--size", "1MiB"]) == 0


def test_a_calibration_from_a_trace_as_json_gives_sources(tmp_path, capsys):
    trace = written(tmp_path / "a.json", steps())
    path = tmp_path / "machine.toml"
    assert main(["calibrate", "--from", str(trace), "-o", str(path), "--json"]) == 0
    rows = {row["key"]: row for row in json.loads(capsys.readouterr().out)["results"]}
    assert isinstance(rows["recorded.host.all.launch"]["value"], float)
    assert all(not isinstance(row["value"], str) for row in rows.values())


def test_traces_need_a_file_to_write(capsys):
    assert main(["calibrate", "--from", "a.json"]) == 2
    assert "-o machine.toml" in capsys.readouterr().err


def test_an_unknown_device_needs_a_machine_to_start_from(tmp_path):
    devices = [{"id": 0, "name": "Quadro K6000", "numSms": 40}]
    path = written(tmp_path / "a.json", steps(), deviceProperties=devices)
    with pytest.raises(UsageError, match="Quadro K6000"):
        calibrated_from([path])
    assert calibrated_from([path], "l40s-8").name == "l40s-8-traced"


@pytest.mark.parametrize(
    ("recorded", "what"), [({"collectives": 3}, "collectives"), ({"nothing": {}}, "nothing")]
)
def test_a_wrong_table_of_records_is_refused(recorded, what):
    table = {**platform("a100-8").to_table(), "recorded": recorded}
    with pytest.raises(PlatformError, match=what):
        platform_from_table(table, "x")
