"""A plan for GPUs is carried out on a running job, proven, watched and undone: on CPU tensors."""

from __future__ import annotations

import warnings
from dataclasses import replace

import pytest

from tests.torch import gpu_apply_cases as cases
from tests.torch.ranks import on_ranks
from weft.calibration.machine_calibration import save
from weft.gpu.knobs import Knob
from weft.hardware import platform
from weft.torch.apply.gpu_plan import _check_environment
from weft.torch.apply.step_watch import PlanWarning

pytestmark = [pytest.mark.torch, pytest.mark.multiprocess, pytest.mark.timeout(120)]


def test_fsdp2_trains_alike_on_the_communicators_of_a_plan():
    for plain, planned, made, carved, registered, rows, after, report in on_ranks(cases.fsdp2, 2):
        assert planned == pytest.approx(plain, rel=1e-6)
        assert made == [
            ((0, 1), {"config.cta_policy": 2}),
            (
                (0, 1),
                {"is_high_priority_stream": True, "config.max_ctas": 16, "config.min_ctas": 1},
            ),
        ]
        assert carved == [16, None]
        assert registered == {cases.LAYER}
        gathers, scatters = rows[0], rows[1]
        assert gathers[:2] == ("all_gather", "dma")
        assert gathers[2].startswith("NCCL copy-engine collectives, not proven")
        assert scatters[:2] == ("reduce_scatter", "priority+partition")
        assert gathers[3] >= 3 * 3
        assert scatters[3] == 3 * 3
        assert after
        assert "NCCL copy-engine collectives" in report


def test_ddp_has_the_buckets_and_the_communicator_of_a_plan():
    for cap, same, made in on_ranks(cases.ddp, 2):
        assert cap == 1 << 20
        assert same
        assert made == [((0, 1), {"is_high_priority_stream": True})]


def test_what_a_job_cannot_execute_is_refused_on_every_rank_with_the_reason():
    for told in on_ranks(cases.refused, 2):
        wanted = (
            "on rank 1 this process sees no GPU",
            "ranks 0 and 1 have different software: nccl 2.29 and 2.28.3",
            "nccl >= 2.28 (got 2.21.5)",
            "this torch (2.13) lacks config.cta_policy",
            "cuda:0 and cuda:1 have no peer access",
            "uses mori SDMA collectives, which weft.torch.apply does not set up",
            "made for AMD devices, which need rocm (got torch 2.13, nccl 2.29, cuda 13.0)",
            "made for 4 ranks (got 2)",
        )
        assert len(told) == len(wanted)
        for text, part in zip(told, wanted, strict=True):
            assert part in text
        assert "--stack torch=2.4,nccl=2.21.5,cuda=12.4" in told[2]


def test_a_plan_for_another_stack_is_named():
    for said in on_ranks(cases.another_stack, 2):
        assert any("nccl 2.29 and 2.31" in text for text in said)


def test_a_log_proves_the_path_that_was_taken():
    for withdrawn, rows, said, _ in on_ranks(cases.proof, 2, False):
        assert withdrawn == ""
        assert said == []
        assert rows[0].endswith(("proven", "not seen in the log"))


def test_a_silent_fallback_is_reported_and_the_gain_withdrawn_on_every_rank():
    for withdrawn, _, said, report in on_ranks(cases.proof, 2, True):
        assert "copy-engine planned, took symmetric, 2 CTAs" in withdrawn
        assert any("gain of 50.0 % is withdrawn" in text for text in said)
        assert "gain withdrawn" in report


def test_steps_that_contradict_the_plan_undo_all_of_it():
    for state, said, carved, rows in on_ranks(cases.contradicted, 2):
        assert state == "default"
        assert any("going back to the default" in text for text in said)
        assert any("staying with the default" in text for text in said)
        assert carved == [16, None]
        assert all(by_plan and by_default for by_plan, by_default in rows.values())


def test_a_weft_group_routes_every_call_on_tensors_of_another_device():
    for rows, waited, made in on_ranks(cases.weft_group, 2):
        assert rows == {
            "all_gather": ("partition", 2),
            "all_to_all": ("serial", 2),
            "all_reduce": ("nothing", 2),
        }
        assert waited == 2
        assert made == [{"config.max_ctas": 8, "config.min_ctas": 1}]


def test_a_plan_for_a_machine_of_a_platform_file_needs_the_file(tmp_path):
    path = save(replace(platform("h100-8"), name="node-checked"), tmp_path / "result.toml")
    for said, state in on_ranks(cases.of_a_file, 2, str(path), backend="gloo"):
        assert "made for node-checked, which is not in the catalogue" in said
        assert 'on="result.toml"' in said
        assert state == "plan"


def test_an_algorithm_of_several_is_set_by_its_part_of_the_variable(monkeypatch):
    knobs = [
        Knob("env", "NCCL_ALGO", f"{n}:ring", env="NCCL_ALGO") for n in ("allreduce", "reduce")
    ]
    monkeypatch.setenv("NCCL_ALGO", "allreduce:ring;reduce:ring")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        _check_environment(knobs)
    monkeypatch.setenv("NCCL_ALGO", "allreduce:ring")
    with pytest.warns(PlanWarning, match="NCCL_ALGO=reduce:ring"):
        _check_environment(knobs)
