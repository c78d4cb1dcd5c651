"""Every strategy that a planner offers on GPUs has an engine with knobs, or a reason why not."""

from __future__ import annotations

import ast
import inspect
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from tests.gpu.toy_plans import plan_for
from tests.gpu.tuner_file import read_tuner_file
from weft.errors import FormatError, PlanError, UnknownNameError, UsageError
from weft.gpu.emit import FORMATS, emit
from weft.gpu.knobs import (
    ENGINES,
    KnobExecution,
    NotExecutable,
    StrategyDemand,
    execution_of,
)
from weft.hardware import platform
from weft.hardware.software_stack import (
    SoftwareStack,
    assumed_stack,
    completed_stack,
    library_units,
    parse_stack,
)
from weft.models.named import generate
from weft.planner.plan import Limits
from weft.planner.plan_knobs import choice_execution, plan_knobs
from weft.planner.planning import plan, search_of
from weft.schedule.strategy import STRATEGIES, Strategy

pytestmark = pytest.mark.thorough

MIB = 1 << 20
STACKS = ("", "nccl=2.21,torch=2.4,cuda=12.4", "nccl=2.31", "rocm=6.2,torch=2.6", "rocm=7.12")


def demand(strategy, kind="all_gather", nbytes=256 * MIB, vendor="NVIDIA", **settings):
    return StrategyDemand(Strategy.of(strategy, settings), kind, nbytes, 8, vendor)


# Executability.


@pytest.mark.parametrize("stack", STACKS)
@pytest.mark.parametrize("machine", ["h100-8", "b200-8", "mi300x-8"])
@pytest.mark.parametrize("model", ["fsdp", "tp", "moe", "ddp"])
def test_a_planned_strategy_is_executable_and_a_refused_one_has_a_reason(machine, model, stack):
    given = {
        "fsdp": ("llama-8b", {"fsdp": "true", "layers": "2"}),
        "tp": ("llama-8b", {"tp": "8", "layers": "2"}),
        "moe": ("mixtral-8x7b", {"ep": "8", "layers": "2", "fsdp": "true"}),
        "ddp": ("bert-large", {"layers": "4"}),
    }[model]
    gpus = platform(machine)
    limits = Limits(stack=parse_stack(stack), error=0.01)
    found = plan(generate(given[0], 8, given[1]), gpus, limits=limits, anyway=True)
    device = gpus.require_device()
    running = completed_stack(limits.stack, device.vendor)
    for choice in found.choices:
        assert isinstance(choice_execution(choice, device, running), KnobExecution)
        for other in choice.alternatives:
            assert other.why
            if not other.refused:
                like = replace(choice, strategy=other.strategy)
                assert isinstance(choice_execution(like, device, running), KnobExecution)
    for name in FORMATS:
        text = emit(name, plan_knobs(found, device))
        if name == "nccl-tuner":
            read_tuner_file(text)
        elif name != "env":
            ast.parse(text)


@pytest.mark.parametrize(
    ("versions", "needs"),
    [
        ("nccl=2.27,torch=2.12,cuda=12.8", "nccl >= 2.28 (got 2.27)"),
        ("nccl=2.28.9,torch=2.12,cuda=12.4", "torch >= 2.13 (got 2.12)"),
        ("nccl=2.28.9,torch=2.12,cuda=12.4", "cuda >= 12.5 (got 12.4)"),
        ("torch=2.12", "nccl >= 2.28 (not installed)"),
    ],
)
def test_copy_engines_need_versions_that_are_named(versions, needs):
    found = execution_of(demand("dma", "all_to_all"), parse_stack(versions))
    assert isinstance(found, NotExecutable)
    assert needs in found.reason


def test_an_older_nccl_gathers_by_copy_engines_in_compiled_code():
    stack = parse_stack("nccl=2.21,torch=2.13,cuda=12.4")
    found = execution_of(demand("dma"), stack)
    assert isinstance(found, KnobExecution)
    assert found.compiled
    assert [knob.door for knob in found.knobs] == ["inductor"]


def test_batched_copies_need_a_newer_driver():
    asked = demand("dma", algorithm="dma-b2b")
    fine = parse_stack("nccl=2.28,torch=2.13,cuda=12.8")
    assert isinstance(execution_of(asked, fine), KnobExecution)
    older = execution_of(asked, parse_stack("nccl=2.28,torch=2.13,cuda=12.6"))
    assert isinstance(older, NotExecutable)
    assert "cuda >= 12.8" in older.reason


@pytest.mark.parametrize("vendor", ["NVIDIA", "AMD"])
@pytest.mark.parametrize("kind", ["all_reduce", "reduce_scatter"])
def test_engines_that_only_copy_do_not_reduce(vendor, kind):
    small = demand("dma", kind, MIB, vendor)
    found = execution_of(small, assumed_stack(vendor))
    assert isinstance(found, NotExecutable)


@pytest.mark.parametrize("machine", ["h100-8", "b200-8"])
def test_the_planner_offers_no_reduction_by_copy_engines_of_nvidia(machine):
    step = generate("llama-8b", 8, {"fsdp": "true", "layers": "2"})
    for options in search_of(step, platform(machine)).options:
        if options.group.what.kind in ("reduce_scatter", "all_reduce"):
            assert not any(each.strategy.kind.by_engines for each in options.candidates)


@pytest.mark.parametrize("machine", ["h100-8", "b200-8", "mi300x-8"])
def test_engines_are_counted_by_the_catalogue(machine):
    step = generate("llama-8b", 8, {"fsdp": "true", "layers": "2"})
    gpus = platform(machine)
    most = gpus.require_device().require_dma().num_engines
    for options in search_of(step, gpus).options:
        for each in options.candidates:
            assert (each.strategy.engines or 0) <= most


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("vendor", ["NVIDIA", "AMD", "Intel"])
def test_every_strategy_is_served_or_refused_with_a_reason(strategy, vendor):
    for kind in ("all_gather", "reduce_scatter", "all_reduce", "all_to_all", "broadcast"):
        found = execution_of(demand(strategy, kind, vendor=vendor, units=16), assumed_stack(vendor))
        if isinstance(found, NotExecutable):
            assert found.reason
        else:
            assert found.knobs or strategy == "concurrent"


def test_a_partition_sets_both_sides():
    found = execution_of(demand("priority+partition", units=16), assumed_stack("NVIDIA"))
    assert isinstance(found, KnobExecution)
    values = {knob.name: knob.value for knob in found.knobs}
    assert values["config.max_ctas"] == 16
    assert values["torch._C._set_sm_carveout_experimental"] == 16
    assert values["is_high_priority_stream"] is True


def test_an_engine_names_its_source_and_its_needs():
    for engine in ENGINES:
        assert engine.source
        assert engine.needs
        assert SoftwareStack(engine.needs).missing(engine.needs) == ""


# The library's own choice, by version.


def test_what_a_library_holds_by_default_belongs_to_a_version():
    device = platform("mi300x-8").require_device()
    newer, older = parse_stack("rocm=7.12"), parse_stack("rocm=7.2")
    found = library_units(newer, device, "all_gather", 64 * MIB)
    assert found is not None
    assert found.units == 0
    assert found.source
    assert library_units(older, device, "all_gather", 64 * MIB) is None
    assert library_units(newer, device, "all_gather", 300 * MIB) is None
    assert library_units(newer, platform("h100-8").require_device(), "all_gather", MIB) is None


def test_the_baseline_of_a_newer_library_leaves_the_units_to_kernels():
    step = generate("llama-8b", 8, {"fsdp": "true", "layers": "2"})
    seconds = {
        versions: plan(step, platform("mi300x-8"), limits=Limits(stack=parse_stack(versions)))
        for versions in ("rocm=7.2", "rocm=7.12")
    }
    held = [seconds[versions].baseline for versions in ("rocm=7.2", "rocm=7.12")]
    assert held[1] <= held[0]


# Stacks.


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("nccl", UsageError),
        ("nccl=", UsageError),
        ("nccl=new", UsageError),
        ("nccl=" + "9" * 5000, UsageError),
        ("nccl=٢.٣", UsageError),
    ],
)
def test_a_stack_that_is_none_is_refused(text, error):
    with pytest.raises(error):
        parse_stack(text)


def test_an_unknown_component_is_told_its_nearest():
    with pytest.raises(UnknownNameError, match="ncl"):
        parse_stack("ncl=2.31")


def test_versions_compare_as_numbers():
    stack = parse_stack("nccl=2.9.1, torch=2.13.0+cu130")
    assert not stack.has("nccl", "2.28")
    assert stack.has("torch", "2.13")
    assert stack.missing({"torch": "2.13", "cuda": "12"}) == "cuda >= 12 (not installed)"
    assert stack.differences(parse_stack("nccl=2.9.1")) == "torch 2.13.0+cu130 and none"


@pytest.mark.parametrize(
    ("mine", "needed"), [("torch=2", "2.0"), ("torch=2.13", "2.13.0"), ("torch=2.13rc1", "2.13")]
)
def test_missing_parts_of_a_version_are_zeros(mine, needed):
    assert parse_stack(mine).has("torch", needed)
    assert not parse_stack(mine).has("torch", f"{needed}.1")


def test_versions_that_are_written_in_two_ways_do_not_differ():
    assert not parse_stack("torch=2.13").differences(parse_stack("torch=2.13.0"))
    other = parse_stack("torch=2.13.0rc1")
    assert parse_stack("torch=2.13").differences(other) == "torch 2.13 and 2.13.0rc1"


# Text.


def test_a_plan_on_another_stack_names_the_missing_version():
    gpus = platform("h100-8").require_device()
    made = plan_for("h100-8", ("all_to_all", 64 * MIB, "dma", {"engines": 3}))
    with pytest.raises(PlanError, match=r"nccl >= 2.28 \(got 2.21.5\)"):
        plan_knobs(made, gpus, parse_stack("nccl=2.21.5,torch=2.4,cuda=12.4"))


def test_a_plan_for_cpu_ranks_has_no_knobs():
    with pytest.raises(PlanError, match="CPU ranks"):
        plan_knobs(plan_for("cpu"), platform("cpu").require_device())


def test_one_process_has_one_value_of_a_variable():
    made = plan_for(
        "h100-8",
        ("all_gather", 64 * MIB, "partition", {"units": 16}),
        ("reduce_scatter", 64 * MIB, "partition", {"units": 8}),
    )
    text = emit("env", plan_knobs(made, platform("h100-8").require_device()))
    assert "export NCCL_MAX_CTAS" not in text
    assert "# NCCL_MAX_CTAS: a process has one value, but the plan needs 16, 8;" in text
    assert "export NCCL_MIN_CTAS=1" in text


def test_a_variable_names_the_collectives_that_it_also_applies_to():
    made = plan_for(
        "h100-8",
        ("all_gather", 64 * MIB, "partition", {"units": 8}),
        ("reduce_scatter", 64 * MIB, "concurrent", {}),
    )
    text = emit("env", plan_knobs(made, platform("h100-8").require_device()))
    before = text.partition("export NCCL_MAX_CTAS=8")[0]
    planned, _, also = before.partition("so it also applies to:")
    assert "# NCCL_MAX_CTAS is planned for:\n#   all_gather" in planned
    assert "#   reduce_scatter" in also


@pytest.mark.parametrize("name", FORMATS)
def test_a_line_break_in_a_name_makes_no_code_of_a_comment(name):
    made = plan_for("h100-8", ("all_gather", 64 * MIB, "dma", {"engines": 3}))
    (choice,) = made.choices
    made = replace(
        made, workload="job\ntouch x", choices=(replace(choice, pair="k\r\ntouch x\u2028touch x"),)
    )
    text = emit(name, plan_knobs(made, platform("h100-8").require_device()))
    assert "touch x" in text
    assert not any(line.startswith("touch") for line in text.splitlines())


@pytest.mark.parametrize(
    "settings",
    [
        {"units": "4; touch x"},
        {"units": 0},
        {"units": -5},
        {"units": True},
        {"bucket": 1 << 70},
        {"engines": 1.5},
        {"algorithm": 7},
    ],
)
def test_a_setting_that_is_no_value_of_its_kind_is_refused_before_it_is_a_variable(settings):
    with pytest.raises(FormatError, match=next(iter(settings))):
        plan_for("h100-8", ("all_gather", 64 * MIB, "partition", settings))


def test_a_quote_in_the_name_of_a_group_makes_no_code_of_it():
    made = plan_for("h100-8", ("all_gather", 64 * MIB, "dma", {"engines": 3}))
    (choice,) = made.choices
    named = replace(choice.collective, group='dp"); touch("x')
    made = replace(made, choices=(replace(choice, collective=named),))
    text = emit("torchcomms", plan_knobs(made, platform("h100-8").require_device()))
    called = [
        ast.unparse(node.func) for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call)
    ]
    assert called == ["torchcomms.new_comm", "torch.device"]


def test_an_algorithm_for_each_function_is_one_variable_and_two_for_one_function_are_none():
    ring = ("reduce_scatter", MIB, "concurrent", {"algorithm": "ring"})
    tree = ("all_reduce", MIB, "concurrent", {"algorithm": "tree"})
    device = platform("h100-8").require_device()
    text = emit("env", plan_knobs(plan_for("h100-8", ring, tree), device))
    assert "export NCCL_ALGO='reducescatter:ring;allreduce:tree'" in text
    other = ("all_reduce", 64 * MIB, "concurrent", {"algorithm": "ring"})
    text = emit("env", plan_knobs(plan_for("h100-8", tree, other), device))
    assert "export NCCL_ALGO" not in text
    assert "the plan needs allreduce:tree, allreduce:ring" in text


def test_a_communicator_is_made_for_each_set_of_options():
    made = plan_for(
        "h100-8",
        ("all_gather", 64 * MIB, "dma", {"engines": 3}),
        ("all_gather", 32 * MIB, "dma", {"engines": 3}),
        ("reduce_scatter", 64 * MIB, "partition", {"units": 16}),
        ("all_reduce", MIB, "concurrent", {}),
    )
    text = emit("torch", plan_knobs(made, platform("h100-8").require_device()))
    assert text.count("dist.new_group(") == 2
    assert "options0.config.cta_policy = 2" in text
    assert "options1.config.max_ctas = 16" in text
    hints = emit("torchcomms", plan_knobs(made, platform("h100-8").require_device()))
    assert "hints={'cta_policy': '2'}" in hints
    assert "'max_ctas': '16'" in hints


def test_a_tuner_file_has_rows_that_the_plug_in_reads():
    made = plan_for(
        "h100-8",
        ("all_gather", 64 * MIB, "partition", {"units": 16}),
        ("all_reduce", MIB, "concurrent", {"algorithm": "tree"}),
        ("all_to_all", MIB, "partition", {"units": 8}),
    )
    text = emit("nccl-tuner", plan_knobs(made, platform("h100-8").require_device()))
    first, second = read_tuner_file(text)
    assert (first.collective, first.min_bytes, first.channels) == ("allgather", 64 * MIB, 16)
    assert (second.collective, second.algorithm, second.channels) == ("allreduce", "tree", -1)
    assert "tuners are not asked about all_to_all" in text


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("allgather,0,1,ring,simple,4,-1", "7 fields"),
        ("gather,0,1,ring,simple,4,-1,-1", "unknown collective 'gather'"),
        ("allgather,0,1,rings,simple,4,-1,-1", "unknown algorithm 'rings'"),
        ("allgather,0,1,ring,LL,4,-1,-1", "unknown protocol 'LL'"),
        ("allgather,9,1,ring,simple,4,-1,-1", "9 to 1 are no range"),
        ("allgather,0,1,ring,simple,65,-1,-1", "65 channels"),
        ("allgather,0,x,ring,simple,4,-1,-1", "invalid literal"),
        ("allgather,0,1,ring,simple,4,-1,-1" + " " * 256, "characters"),
    ],
)
def test_a_row_that_the_plug_in_would_not_read_is_refused(line, told):
    with pytest.raises(FormatError, match=told):
        read_tuner_file(f"# comment\n{line}\n")


def test_an_unknown_format_is_told_its_nearest():
    made = plan_for("h100-8", ("all_reduce", MIB, "concurrent", {}))
    with pytest.raises(UnknownNameError, match="nccl"):
        emit("nccl", plan_knobs(made, platform("h100-8").require_device()))


# Names of torch, without a GPU: its Python, and the stubs of what only builds with CUDA have.


def stub(relative):
    torch = pytest.importorskip("torch")
    return ast.parse((Path(torch.__file__).parent / relative).read_text())


def test_every_knob_of_python_exists_in_this_torch():
    pytest.importorskip("torch")
    fsdp = import_module("torch.distributed.fsdp").FSDPModule
    ddp = import_module("torch.nn.parallel").DistributedDataParallel
    for engine in ENGINES:
        for knob in engine.knobs:
            match knob.door:
                case "fsdp2":
                    assert callable(getattr(fsdp, knob.name))
                case "ddp":
                    assert knob.name in inspect.signature(ddp.__init__).parameters
                case "inductor":
                    found: Any = import_module("torch._inductor.config")
                    for part in knob.name.split("."):
                        found = getattr(found, part)
                    assert found is False
                case "torch":
                    module, _, name = knob.name.rpartition(".")
                    names = {
                        node.name
                        for node in ast.walk(stub("_C/__init__.pyi"))
                        if isinstance(node, ast.FunctionDef)
                    }
                    assert name in names or hasattr(import_module(module), name)


def test_every_option_of_a_communicator_exists_in_the_stubs_or_the_documentation_of_torch():
    found = {
        node.target.id
        for node in ast.walk(stub("_C/_distributed_c10d.pyi"))
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
    }
    fsdp = import_module("torch.distributed.fsdp").FSDPModule
    told = inspect.getdoc(fsdp.set_symm_mem_for_comm) or ""
    for engine in ENGINES:
        for knob in engine.knobs:
            if knob.door == "communicator":
                assert knob.name.rpartition(".")[2] in found or f"opts.{knob.name}" in told


def test_candidates_name_the_missing_engine_in_their_reason():
    step = generate("llama-8b", 8, {"fsdp": "true", "layers": "2"})
    stack = parse_stack("nccl=2.16,torch=2.4,cuda=12.4")
    found = plan(step, platform("h100-8"), limits=Limits(stack=stack))
    others = [each for choice in found.choices for each in choice.alternatives]
    told = [each.why for each in others if each.strategy.name == "partition"]
    assert any("nccl >= 2.17 (got 2.16)" in why for why in told)
    assert not any(c.strategy.name in ("partition", "dma") for c in found.choices)
