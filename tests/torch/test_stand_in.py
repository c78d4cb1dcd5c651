"""Tensors of another device, with memory and a C++ backend of their own, in groups with weft."""

import subprocess
import sys

import pytest

from tests.torch.ranks import on_ranks
from tests.torch.stand_in import calls, planned_job, trainings
from tests.torch.stand_in.device import HAS_COMPILER, NAME, load

pytestmark = [
    pytest.mark.torch,
    pytest.mark.multiprocess,
    pytest.mark.timeout(240),
    pytest.mark.skipif(not HAS_COMPILER, reason="the device is built with g++"),
]
BACKEND = f"cpu:weft,{NAME}:{NAME}"


def prepare(rank, backend):
    load()


@pytest.fixture(scope="module", autouse=True)
def _built():
    """Build it once, in a process of its own: it is no device of the process of the tests."""
    subprocess.run([sys.executable, "-m", load.__module__], check=True, timeout=200)


def on_device(function, num_ranks, *args, backend=BACKEND):
    return on_ranks(function, num_ranks, *args, prepare=(prepare, None), backend=backend)


@pytest.fixture(scope="module")
def made():
    return on_ranks(calls.make_all, 2, "cpu", backend="gloo"), on_device(calls.make_all, 2, NAME)


@pytest.mark.parametrize("name", calls.CALLS)
def test_a_call_gives_what_gloo_gives_on_the_cpu(made, name):
    expected, found = ([each[name] for each in ranks] for ranks in made)
    assert not any(isinstance(each, str) for each in expected), expected
    assert found == expected


@pytest.mark.parametrize("backend", ["weft", f"{NAME}:{NAME},cpu:weft"])
def test_the_backend_of_a_device_is_found_however_the_group_is_named(backend):
    for summed, *_ in on_device(calls.all_reduce, 2, NAME, backend=backend):
        assert summed == [10.0, 12.0, 14.0, 16.0]


def test_a_batch_of_messages_is_coalesced():
    messages = ["send", "recv"] * 2
    for noted in on_device(calls.noted, 2, NAME):
        assert noted == ["start_coalescing", *messages, "end_coalescing"]


def test_a_group_splits_with_the_groups_of_its_devices():
    for rank, found in enumerate(on_device(calls.split, 2, NAME)):
        own = [float(each + 10 * rank) for each in range(4)]
        assert found[:4] == [own, own, 1, "halves"]
        assert found[5:] == [rank == 1, 1 - rank, [10.0, 12.0, 14.0, 16.0]]


def test_the_backend_of_a_device_is_registered_with_the_group_for_calls_from_cpp():
    for rank, found in enumerate(on_device(calls.from_cpp, 2, NAME)):
        mine = [2.0 * rank, 2.0 * rank + 1]
        assert found == [["cpu", NAME], True, [*mine, *(each + 10 for each in mine)]]


@pytest.fixture(scope="module", params=[2, 4])
def trained(request):
    expected = on_ranks(trainings.train_all, request.param, "cpu", backend="gloo")
    return expected, on_device(trainings.train_all, request.param, NAME)


def test_trainings_lose_what_they_lose_with_gloo_on_the_cpu(trained):
    for expected, found in zip(*trained, strict=True):
        if "fsdp1" in expected:  # it refuses to train without an accelerator
            expected["fsdp1"] = expected["ddp"]
        assert found.keys() == expected.keys()
        for name in expected:
            assert flat(found[name]) == pytest.approx(flat(expected[name]), rel=1e-5), name


def flat(values):
    if not isinstance(values, list):
        return [values]
    return [each for one in values for each in flat(one)]


@pytest.fixture(scope="module")
def plan_file(tmp_path_factory):
    path = tmp_path_factory.mktemp("plan") / "plan.json"
    step = f"{planned_job.__name__}:step"
    stack = "nccl=2.29,torch=2.13,cuda=13.0"
    how = [step, "--on", "h100-8", "--ranks", "2", "--stack", stack, "-o", str(path)]
    subprocess.run([sys.executable, "-m", "weft", "plan", *how], check=True, timeout=120)
    return path


@pytest.mark.parametrize("kernels", [False, True])
def test_a_planned_fsdp2_job_trains_alike_and_a_log_proves_its_path(plan_file, tmp_path, kernels):
    for found in on_device(planned_job.prove, 2, str(plan_file), str(tmp_path), kernels):
        assert found["found"] == pytest.approx(found["expected"], rel=1e-6)
        assert found["made"] == [((0, 1), {"config.cta_policy": 2})]
        assert set(found["registered"]) == {2 * planned_job.SHARD}
        calls_made = planned_job.STEPS * planned_job.LAYERS
        assert [row[:2] for row in found["rows"]] == [
            ("all_gather", "dma+partition"),
            ("all_gather", "dma"),
            ("reduce_scatter", "concurrent"),
        ]
        assert [row[3] for row in found["rows"]] == [calls_made] * 3
        for _, _, path, _ in found["rows"][:2]:
            assert path.endswith("took symmetric, 2 CTAs (AllGather_LL)" if kernels else "proven")
        assert bool(found["withdrawn"]) == kernels
        assert ["withdrawn" in text for text in found["said"]] == [True] * kernels


def test_a_planned_fsdp2_job_goes_back_if_its_steps_contradict_the_plan(plan_file, tmp_path):
    for found in on_device(planned_job.contradict, 2, str(plan_file), str(tmp_path)):
        assert "10 steps by plan took 10 s each" in found["said"][-1]
        assert found["by_default"] == {
            "all_gather": planned_job.LAYERS,
            "reduce_scatter": planned_job.LAYERS,
        }
        assert found["carved"] == [8, None, None]
        assert found["by_plan"] == {"PlannedAllGather"}
        assert found["undone"] == {"DefaultAllGather"}
        assert found["loss"] > 0
