"""The data sets of measured steps, each with its split and its rows next to their predictions."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from validation.dlrm_steps import example_rows, mlperf_rows
from validation.megatron_steps import bridge_rows, golden_rows, simumax_rows
from validation.mlperf_v5 import submitted_rows
from validation.splits import (
    STEPS_405B,
    STEPS_BERT,
    STEPS_BRIDGE,
    STEPS_DLRM,
    STEPS_DLRM_NVIDIA,
    STEPS_GOLDENS,
    STEPS_LORA,
    STEPS_SIMUMAX,
    Split,
)
from validation.stacks import SETS, set_rows
from validation.step_rows import StepRow


@dataclass(frozen=True, slots=True)
class MeasuredSteps:
    """One data set; steps of a ``host_bound`` one tell about the host more than about a stack."""

    title: str
    split: Split
    rows: Callable[[Path], Iterable[StepRow]]
    host_bound: bool = False


def _submitted(benchmark: str) -> Callable[[Path], Iterable[StepRow]]:
    return lambda folder: submitted_rows(folder, benchmark)


STEP_SETS = (
    *(MeasuredSteps(each.title, each.split, partial(set_rows, each)) for each in SETS),
    MeasuredSteps("Llama 3.1 405B, MLPerf", STEPS_405B, _submitted("llama31_405b")),
    MeasuredSteps("Llama 2 70B LoRA, MLPerf", STEPS_LORA, _submitted("llama2_70b_lora")),
    MeasuredSteps("BERT, MLPerf", STEPS_BERT, _submitted("bert")),
    MeasuredSteps("DLRM-DCNv2 by HugeCTR, MLPerf", STEPS_DLRM, mlperf_rows),
    MeasuredSteps("DLRM, NVIDIA's examples", STEPS_DLRM_NVIDIA, example_rows),
    MeasuredSteps("Llama slices on B200, SimuMax", STEPS_SIMUMAX, simumax_rows),
    MeasuredSteps("Megatron-Bridge", STEPS_BRIDGE, bridge_rows),
    MeasuredSteps("Megatron-LM's tests", STEPS_GOLDENS, golden_rows, host_bound=True),
)
