"""What ``import weft`` offers: names that show, functions that take names, short results."""

import gzip
import json
import pkgutil
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest

import weft
from weft.errors import UsageError
from weft.models.tables import Shard
from weft.planner.sharding import ShardingPlan
from weft.schedule import expand
from weft.serving.outcome import ServingOutcome
from weft.trace import analyze
from weft.units import brief

MOST = 2000  # characters of a repr
TIMES = np.arange(10_000.0)
FSDP = {"fsdp": True, "recompute": True}
MODULES = {each.name for each in pkgutil.iter_modules(weft.__path__)}


def test_every_public_name_shows_and_can_be_had():
    shown = dir(weft)
    assert shown == sorted(set(shown))
    for name in weft.__all__:
        assert name in shown
        assert getattr(weft, name) is not None
    assert "__version__" in shown
    assert not {"Any", "TYPE_CHECKING", "import_module"} & set(shown)


def test_sub_packages_show_and_can_be_had_without_importing_them():
    code = "import weft; print(weft.errors.WeftError.__name__, weft.trace.read.__name__)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["WeftError", "read"]
    hidden = {"_core", "__main__", "api", "cli", "local_runs"}
    assert set(dir(weft)) & MODULES == MODULES - hidden


def test_no_function_has_the_name_of_a_module():
    assert not set(weft.__all__) & MODULES


@pytest.mark.parametrize(
    "name",
    [
        name
        for name in sorted(MODULES - {"__main__", "_core", "torch"})
        if "def __getattr__" in Path(str(import_module(f"weft.{name}").__file__)).read_text()
    ],
)
def test_names_that_a_package_finds_later_show(name):
    package = import_module(f"weft.{name}")
    for each in package.__all__:
        assert each in dir(package)
        assert getattr(package, each) is not None


def test_looking_at_names_imports_nothing():
    code = "import sys, weft; dir(weft); print(any(n.startswith('weft.') for n in sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_a_name_that_is_none_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'predikt'"):
        _ = weft.predikt


@pytest.fixture(scope="module")
def workload():
    return weft.find_workload("llama-8b", 8, FSDP)


@pytest.mark.parametrize("by_name", [True, False])
def test_predict_takes_names_and_values(workload, by_name):
    platform = weft.platform("mi300x-8")
    by_values = weft.predict(workload, platform)
    found = weft.predict("llama-8b", "mi300x-8" if by_name else platform, settings=FSDP)
    assert found.seconds == by_values.seconds
    assert weft.predict(workload, "mi300x-8").seconds == by_values.seconds


def test_predict_takes_ranks_of_a_platform():
    assert weft.predict("gpt2", "a100-8", num_ranks=2).graph.num_ranks == 2
    assert weft.predict("gpt2", weft.platform("a100-8"), num_ranks=2).platform.num_ranks == 2


def test_settings_may_be_values_of_python():
    asked = {"layers": 4.0, "pp": 2, "stage_layers": [3, 1], "batch": 4, "micro_batch": 1}
    found = weft.predict("gpt2", "a100-8", num_ranks=2, settings=asked).seconds
    words = asked | {"layers": "4", "stage_layers": "3-1"}
    assert found == weft.predict("gpt2", "a100-8", num_ranks=2, settings=words).seconds
    with pytest.raises(UsageError, match="cannot read batch='true'"):
        weft.predict("gpt2", "a100-8", settings={"batch": True})


def test_plan_takes_names_and_values():
    by_names = weft.plan("gpt2", "a100-8", mode="heuristic")
    by_values = weft.plan(weft.find_workload("gpt2", 8), weft.platform("a100-8"), mode="heuristic")
    assert by_names == by_values


def test_a_plan_of_many_micro_batches_starts_from_what_is_predicted(monkeypatch):
    for module in ("weft.models.folding", "weft.planner.job_prediction"):
        monkeypatch.setattr(f"{module}.MANY_OPS", 400)
    many = {"layers": 2, "pp": 2, "batch": 64, "micro_batch": 1}
    made = weft.plan("gpt2", "a100-8", num_ranks=2, settings=many, mode="heuristic")
    assert made.baseline == weft.predict("gpt2", "a100-8", num_ranks=2, settings=many).seconds
    assert "micro batches, which repeat" in made.notes[0]


def test_simulate_takes_the_name_of_a_platform():
    schedule = weft.collective("all_gather", "ring", num_ranks=8, nbytes=1 << 20)
    by_value = weft.simulate(schedule, weft.platform("mi300x-8"))
    assert weft.simulate(schedule, "mi300x-8").seconds == by_value.seconds


def test_what_cannot_be_asked_is_said(workload, tmp_path):
    with pytest.raises(UsageError, match="expected a StepGraph or its name"):
        weft.predict(8, "mi300x-8")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="'batch' is too late"):
        weft.predict(workload, "mi300x-8", settings={"batch": 4})
    with pytest.raises(UsageError, match=r"for 8 ranks \(got 4\)"):
        weft.predict(workload, "mi300x-8", num_ranks=4)
    trace = tmp_path / "rank0.json.gz"
    trace.write_bytes(gzip.compress(b"{}"))
    with pytest.raises(UsageError, match="recorded step"):
        weft.predict(trace, "mi300x-8")


def step_trace(path):
    """A trace of two steps of many kernels, as torch's profiler writes it."""
    events = []
    for step in range(2):
        begin = step * 10_000
        common = {"ph": "X", "pid": 1, "tid": 1}
        marked = {"name": f"ProfilerStep#{step}", "cat": "user_annotation"}
        events.append(common | marked | {"ts": begin, "dur": 9_000})
        for i in range(400):
            launch = {"name": "cudaLaunchKernel", "cat": "cuda_runtime"}
            args = {"correlation": step * 400 + i, "stream": 7, "device": 0}
            events.append(common | launch | {"ts": begin + 20 * i, "dur": 5, "args": args})
            kernel = {"name": f"kernel_{i}", "cat": "kernel", "pid": 0, "tid": 7}
            events.append(common | kernel | {"ts": begin + 20 * i + 8, "dur": 10, "args": args})
    text = json.dumps({"schemaVersion": 1, "traceEvents": events})
    path.write_bytes(gzip.compress(text.encode()))
    return path


RESULTS = {
    "workload": lambda _, workload: workload,
    "step": lambda _, workload: workload.steps[0],
    "platform": lambda *_: weft.platform("h100-8x8"),
    "device": lambda *_: weft.platform("h100-8").device,
    "prediction": lambda _, workload: weft.predict(workload, "mi300x-8"),
    "timeline": lambda _, workload: weft.predict(workload, "mi300x-8").timeline,
    "plan": lambda _, workload: weft.plan(workload, "mi300x-8", mode="heuristic"),
    "choice": lambda _, workload: weft.plan(workload, "mi300x-8", mode="heuristic").choices[0],
    "schedule": lambda *_: weft.collective("all_reduce", "ring", num_ranks=8, nbytes=1 << 20),
    "table": lambda *_: expand(weft.collective("all_reduce", "ring", num_ranks=8, nbytes=1 << 20)),
    "analysis": lambda path, _: analyze([step_trace(path)]),
    "rank analysis": lambda path, _: analyze([step_trace(path)]).ranks[0],
    "critical path": lambda path, _: analyze([step_trace(path)]).ranks[0].path,
    "trace": lambda path, _: analyze([step_trace(path)]).ranks[0].trace,
    "answer": lambda path, _: weft.what_if(step_trace(path)),
    "sharding": lambda *_: ShardingPlan(
        "planned",
        tuple(Shard(i, 0, 0, 64) for i in range(500)),
        *(1.0, 1, 1.0, 1.0, 0),
    ),
    "serving": lambda *_: ServingOutcome(TIMES, TIMES, TIMES, 1.0, 10, 1.0, 1.0, 7),
}


@pytest.mark.parametrize("name", RESULTS)
def test_a_result_prints_short(name, workload, tmp_path):
    result = RESULTS[name](tmp_path / "rank0.json.gz", workload)
    assert result is not None
    assert len(repr(result)) < MOST


def test_a_prediction_and_a_plan_say_what_they_found(workload):
    prediction = weft.predict(workload, "mi300x-8")
    assert repr(prediction).startswith("<Prediction of llama-8b on mi300x-8: ")
    assert "to" in repr(prediction)
    plan = weft.plan("gpt2", "a100-8", mode="heuristic")
    assert repr(plan).startswith("<Plan of gpt2 on 8 ranks of a100-8: ")
    assert f"{len(plan.choices)} choices" in repr(plan)


def test_schedules_that_differ_only_in_what_is_not_printed_still_differ():
    """Ranks compare schedules by a digest, which must not be one of the short repr."""
    one, other = (
        weft.collective("all_reduce", "ring", num_ranks=8, nbytes=n) for n in (1024, 2048)
    )
    assert repr(one) == repr(other)
    assert one != other


def test_a_brief_repr_counts_what_is_long():
    shard = ShardingPlan("x" * 200, (), 1.0, 2, 3.0, 4.0, 5)
    assert brief(shard) == (
        f"ShardingPlan(name='{'x' * 78}..', shards=(), seconds=1.0, bytes_per_rank=2, "
        "lookups=3.0, exchange=4.0, slowest=5)"
    )
