"""Real traces: replay and what-if within what they promise, on traces nothing was fitted to."""

from __future__ import annotations

import numpy as np
import pytest

from weft.hardware import platform
from weft.trace import read
from weft.whatif import errors_of, replay, what_if
from weft.whatif.joined_job import job_of, job_replay

pytestmark = pytest.mark.data


@pytest.mark.parametrize(
    "path",
    [
        "hta_traces/nccl_meta_2xA100_rank0.json.gz",
        "tracelens/traces/resnet_ddp_8xMI300X_rank0.json.gz",
        pytest.param("hta_traces/recsys_8xA100_rank3.json.gz", marks=pytest.mark.slow),
        pytest.param("hta_traces/ddp_2xV100_rank1.json.gz", marks=pytest.mark.slow),
    ],
)
def test_a_step_is_put_together_from_the_others(data, path):
    found = replay(read(data / path))
    median, largest = errors_of(found)
    assert all(each.held_out for each in found)
    assert median <= 0.05
    assert largest <= 0.12


def test_what_ranks_wait_for_each_other_comes_out_of_the_simulation(data):
    folder = data / "param_dlrm_8xV100/kineto"
    job = job_replay(job_of([read(folder / f"rank{r}.pt.trace.json.gz") for r in range(8)]))
    waits = job.waits(job.run()).sum(axis=1)
    assert np.abs(waits / job.waited.sum(axis=1) - 1).max() <= 0.1


def test_a_model_moves_from_one_device_to_another(data):
    folder = data / "tracelens/traces"
    answer = what_if(read(folder / "qwen1.5-0.5b_H100_single.json.gz"), on=platform("mi300x-8"))
    there = replay(read(folder / "qwen1.5-0.5b_MI300X_single.json.gz"))[0]
    assert answer.outcomes[0].step == pytest.approx(there.measured, rel=0.15)
