"""Whatever a step takes: more work never makes it faster, a better machine never slower."""

from __future__ import annotations

from itertools import pairwise

import pytest

import weft
from weft.hardware import platform
from weft.models.named import job_of
from weft.planner.job_prediction import predict_job
from weft.planner.planning import plan
from weft.planner.prices import Prices, default_library
from weft.step.step_graph import Collective

pytestmark = pytest.mark.thorough

JOBS = [
    ("llama-8b", {"layers": "4", "batch": "16", "tp": "2", "micro_batch": "2", "zero": "1"}),
    ("gpt2-large", {"layers": "8", "batch": "16", "pp": "2", "seq": "512"}),
    ("mixtral-8x7b", {"layers": "2", "batch": "16", "ep": "4", "fsdp": "true", "seq": "1024"}),
]
MACHINES = ("a100-8", "h100-8", "h200-8", "mi300x-8", "h100-8x2")


def seconds(name: str, settings: dict[str, str], machine: str = "h100-8") -> float:
    found = platform(machine)
    job = job_of(name, found.num_ranks, settings)
    return predict_job(job, found, anyway=True, ranged=False).seconds


@pytest.mark.parametrize(
    "more", [{"layers": "12"}, {"batch": "64"}, {"vocab": "300000"}, {"recompute": "full"}]
)
@pytest.mark.parametrize(("name", "settings"), JOBS)
def test_a_step_with_more_work_is_not_faster(name, settings, more):
    assert seconds(name, settings | more) >= seconds(name, settings)


@pytest.mark.parametrize(("name", "settings"), JOBS)
def test_a_step_is_not_slower_on_the_next_generation(name, settings):
    taken = [seconds(name, settings, machine) for machine in ("a100-8", "h100-8", "h200-8")]
    assert taken == sorted(taken, reverse=True)


@pytest.mark.parametrize("kind", ["all_reduce", "all_gather", "reduce_scatter", "all_to_all"])
@pytest.mark.parametrize("machine", MACHINES)
def test_a_longer_message_is_not_faster(machine, kind):
    found = platform(machine)
    prices, ranks = Prices(found, default_library(found)), tuple(range(found.num_ranks))
    sizes = [step << power for power in range(6, 30) for step in (16, 20, 24, 28)]
    taken = [prices.collective(Collective(kind, size), ranks) for size in sizes]
    assert all(longer >= 0.995 * shorter for shorter, longer in pairwise(taken))


@pytest.mark.parametrize(("name", "settings"), JOBS)
def test_a_plan_starts_from_what_is_predicted(name, settings):
    machine = platform("h100-8")
    graph = job_of(name, 8, settings).graph()
    predicted = weft.predict(graph, machine, anyway=True).seconds
    assert plan(graph, machine).baseline == pytest.approx(predicted, rel=1e-9)
    assert seconds(name, settings) == pytest.approx(predicted, rel=1e-9)
