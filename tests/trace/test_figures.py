"""The traces of others: what weft says of them equals a straightforward computation."""

import gzip

import msgspec
import pytest

from weft.trace import analyze, read

pytestmark = pytest.mark.data
FILES = (
    *(f"param_dlrm_8xV100/kineto/rank{rank}.pt.trace.json.gz" for rank in range(8)),
    *(
        f"hta_traces/{name}.json.gz"
        for name in (
            "recsys_8xA100_rank3",
            "nccl_meta_2xA100_rank0",
            "ddp_2xV100_rank1",
            "single_V100_rank0_ns",
        )
    ),
    *(
        f"tracelens/traces/{name}.json.gz"
        for name in (
            "resnet_ddp_8xMI300X_rank0",
            "qwen1.5-0.5b_H100_single",
            "qwen1.5-0.5b_MI300X_single",
            "bert-small_H100_single",
            "bert-small_MI300X_single",
        )
    ),
)
GPU = ("kernel", "gpu_memcpy", "gpu_memset")


def union(intervals):
    total, reached = 0.0, float("-inf")
    for start, end in sorted(intervals):
        total += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return total


def straightforward(path):
    """Compute all of it with loops over the events, in seconds."""
    events = msgspec.json.decode(gzip.decompress(path.read_bytes()))["traceEvents"]
    gpu = [e for e in events if e.get("ph") == "X" and e.get("cat") in GPU]
    zero = min(e["ts"] for e in gpu)  # a double holds today's microseconds only to a quarter
    starts = [(e["ts"] - zero) * 1e-6 for e in gpu]
    spans = [
        (start, start + e["dur"] * 1e-6, e["name"].startswith("nccl"))
        for start, e in zip(starts, gpu, strict=True)
    ]
    everything = [(start, end) for start, end, _ in spans]
    steps = {
        e["name"]: e["dur"] * 1e-6
        for e in events
        if str(e.get("name")).startswith("ProfilerStep#") and e["cat"] == "user_annotation"
    }
    busy = union(everything)
    compute = union([(start, end) for start, end, is_comm in spans if not is_comm])
    return {
        "num_events": len(events),
        "num_gpu_events": len(gpu),
        "span": max(end for _, end in everything) - min(start for start, _ in everything),
        "busy": busy,
        "compute": compute,
        "communication": union([(start, end) for start, end, is_comm in spans if is_comm]),
        "exposed": busy - compute,
    }, steps


@pytest.mark.parametrize("file", FILES)
def test_totals_and_walls_are_those_of_a_straightforward_computation(data, file):
    want, steps = straightforward(data / file)
    rank = analyze(data / file).ranks[0]
    row = rank.as_result()
    assert {key: row[key] for key in want} == pytest.approx(want, rel=1e-3)
    assert {s["name"]: s["wall"] for s in row["steps"]} == pytest.approx(steps, rel=1e-3)


def test_steps_of_the_mi300x_hold_what_tracelens_reports(data):
    rank = analyze(data / "tracelens/traces/resnet_ddp_8xMI300X_rank0.json.gz").ranks[0]
    assert rank.total.communication == pytest.approx(71.52e-3, rel=1e-3)
    assert sum(s.split.communication for s in rank.steps) == pytest.approx(47.20e-3, rel=1e-3)
    assert rank.backlog is not None
    assert rank.backlog.num_gpu_events == 968
    assert rank.step_time == pytest.approx(19.0e-3, rel=0.005)
    assert rank.is_gpu_bound


def test_eight_ranks_of_dlrm_wait_for_most_of_their_communication(data):
    analysis = analyze(data / file for file in FILES[:8])
    assert analysis.aligned_within is not None
    assert analysis.aligned_within < 10e-6
    waited = sum(rank.total.waiting or 0.0 for rank in analysis.ranks)
    total = sum(rank.total.communication for rank in analysis.ranks)
    assert waited / total == pytest.approx(0.97, abs=0.01)
    assert [rank.total.moving for rank in analysis.ranks] == pytest.approx([198e-6] * 8, abs=2e-6)
    assert {rank.basis for rank in analysis.ranks} == {"measured"}
    assert analysis.stragglers[0].rank == 7


def test_gemms_are_slowed_down_as_a_comparison_by_position_found(data):
    path = data / "hta_traces/nccl_meta_2xA100_rank0.json.gz"
    (gemm,) = (s for s in analyze(path).ranks[0].slowdowns if s.family == "GEMM")
    assert gemm.num_pairs == 11
    assert (gemm.median, gemm.weighted) == pytest.approx((1.316, 1.292), abs=1e-3)


@pytest.mark.parametrize(("name", "steps"), [("linear", 39), ("resnet", 29)])
def test_steps_without_marks_are_found_by_how_kernels_repeat(data, name, steps):
    rank = analyze(data / f"param_et/{name}_kineto.json.gz").ranks[0]
    assert rank.steps_found
    assert len(rank.steps) == steps
    counts = {step.split.num_gpu_events for step in rank.steps[1:]}
    assert len(counts) == 1


def test_collectives_have_the_sizes_of_their_operators(data):
    trace = read(data / "hta_traces/nccl_meta_2xA100_rank0.json.gz")
    uses = analyze(data / "hta_traces/nccl_meta_2xA100_rank0.json.gz").ranks[0].collectives
    assert trace.world_size == 2
    assert {(u.kind, u.nbytes) for u in uses if u.kind == "broadcast"} == {
        ("broadcast", 212480),
        ("broadcast", 424),
    }
    assert sum(u.nbytes or 0 for u in uses if u.kind == "all_reduce") == 3 * 102228128
