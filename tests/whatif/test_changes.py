"""Changes of a replayed step: each does what its name says and nothing else."""

from __future__ import annotations

import numpy as np
import pytest

from tests.whatif.player import Do, recorded
from weft.errors import UnknownNameError, UsageError
from weft.hardware import platform
from weft.trace.analysis.align import RankTrace
from weft.trace.analysis.machine_links import MachineLinks
from weft.trace.recorded.costs import cost_of
from weft.whatif import NAMES, what_if
from weft.whatif.change import change, not_longer
from weft.whatif.model import model_of

# An exposed collective, then one overlapped with a long kernel; the host waits at the end.
STEP = [
    Do(seconds=300.0),
    Do(stream=20, seconds=900.0, after=(0,), nccl=True),
    Do(stream=20, seconds=900.0, after=(0,), nccl=True),
    Do(seconds=400.0),
    Do(seconds=50.0, after=(2,)),
    Do(back=True),
]


@pytest.fixture(scope="module")
def trace(tmp_path_factory):
    return recorded(tmp_path_factory.mktemp("step"), [STEP] * 4)[0]


@pytest.fixture(scope="module")
def model(trace):
    return model_of(RankTrace.of(trace))


@pytest.fixture(scope="module")
def answer(trace):
    return what_if(trace)


def by_name(answer):
    return {outcome.name: outcome for outcome in answer.outcomes}


def test_every_change_has_an_assumption_and_a_range_around_it(answer):
    left_out = set(NAMES) - {outcome.name for outcome in answer.outcomes}
    # Copy engines of an A100 do not reduce, sums are not encoded, and no product is fused.
    assert {"dma", "dma+partition", "compressed", "compressed-int8", "fused"} <= left_out
    assert left_out <= {"dma", "dma+partition", "compressed", "compressed-int8", "fused",
                        "no-slowdown"}  # fmt: skip
    for outcome in answer.outcomes:
        assert outcome.why
        assert outcome.low <= outcome.step <= outcome.high
        assert outcome.gain == pytest.approx(1 - outcome.step / answer.replayed_step)


def test_as_recorded_saves_nothing(answer):
    assert by_name(answer)["concurrent"].gain == 0


def test_in_turn_is_never_faster_and_the_bounds_never_slower(answer):
    found = by_name(answer)
    assert found["serial"].gain <= 0
    assert all(found[name].gain >= 0 for name in ("no-waiting", "no-communication", "no-host"))
    best = max(o.gain for o in answer.outcomes if o.name != "no-host")
    assert found["no-communication"].gain == best


def test_links_matter_in_the_right_direction(answer):
    found = by_name(answer)
    assert found["links*2"].gain >= 0 >= found["links/2"].gain
    assert found["links/2"].high > answer.replayed_step  # all of it may have been moving


def test_a_relief_that_reorders_kernels_saves_nothing_rather_than_less(model):
    slower = change(model, "links/2")
    assert slower is not None
    found = not_longer(model, slower)
    assert found.run.seconds == model.run.seconds
    assert slower.run in found.ends
    assert "on an edge" in found.why
    faster = change(model, "links*2")
    assert faster is not None
    assert not_longer(model, faster) == faster


@pytest.mark.data
def test_faster_links_never_lengthen_a_recorded_step(data):
    answer = what_if(data / "hta_traces/recsys_8xA100_rank3.json.gz", ["links*2", "links*1.5"])
    for outcome in answer.outcomes:
        assert outcome.gain >= 0
        assert outcome.low <= outcome.step < outcome.high


def test_a_step_without_collectives_says_that_there_is_nothing_to_change(tmp_path):
    answer = what_if(recorded(tmp_path, [[Do()] * 4] * 3)[0], ["dma", "no-host"])
    assert [outcome.name for outcome in answer.outcomes] == ["no-host"]
    assert any("no collective" in note for note in answer.notes)


def test_a_change_that_nobody_knows_is_named(model):
    with pytest.raises(UnknownNameError, match="fuse"):
        change(model, "fuse")


@pytest.mark.parametrize("name", ["links*0", "links/0", "ranks*0.0", "buckets/0"])
def test_a_change_by_nothing_is_refused(model, name):
    with pytest.raises(UsageError, match="must be > 0"):
        change(model, name)


def collectives(run):
    """The bytes of the collectives of one iteration, in order."""
    ops = run.engine.graph.steps[0].ops
    found = [op.collective.nbytes for op in ops if op.collective is not None]
    return found[: len(found) // 3]


def test_merged_collectives_carry_all_bytes(model):
    made = change(model, "buckets*2")
    assert made is not None
    assert collectives(made.run) == [sum(collectives(model.run))]


@pytest.mark.parametrize("pieces", [2, 3])
def test_split_collectives_carry_the_same_bytes_in_pieces(model, pieces):
    made = change(model, f"buckets/{pieces}")
    assert made is not None
    # The second collective has no kernel in front of it that could make a part of it ready.
    first, second = collectives(model.run)
    assert collectives(made.run) == [first // pieces] * pieces + [second]


def test_the_model_takes_as_long_as_the_replay(model):
    assert model.run.seconds == pytest.approx(model.replays[0].simulated, rel=0.01)


def test_moved_to_the_same_device_a_step_takes_as_long(trace):
    same = what_if(trace, on=platform("a100-8"))
    assert same.outcomes[0].step == pytest.approx(same.replayed_step)


@pytest.mark.parametrize(
    ("op", "dims", "types", "family", "shape"),
    [
        ("aten::mm", [[8, 4], [4, 2]], ["float", "float"], "gemm", (8, 2, 4)),
        ("aten::addmm", [[2], [8, 4], [4, 2]], ["c10::BFloat16"] * 3, "gemm", (8, 2, 4)),
        ("aten::bmm", [[3, 8, 4], [3, 4, 2]], ["float"] * 2, "bmm", (3, 8, 2, 4)),
        ("aten::add", [[10, 3], [3]], ["float"] * 2, "elementwise", (4 * (30 + 3 + 30),)),
        ("aten::copy_", [[10], [10]], ["float", "long int"], "elementwise", (80 + 40,)),
        ("aten::cat", [[[10, 2], [10, 2]], []], ["float", "Scalar"], "elementwise", (320,)),
    ],
)
def test_operators_are_known_by_the_shapes_of_their_inputs(op, dims, types, family, shape):
    cost = cost_of(op, {"Input Dims": dims, "Input type": types})
    assert cost is not None
    assert (cost.family, cost.shape) == (family, shape)


def test_flash_attention_has_its_sequence_before_its_heads():
    dims = [[2, 100, 8, 64], [2, 100, 4, 64], [2, 100, 4, 64]]
    cost = cost_of(
        "aten::_flash_attention_forward", {"Input Dims": dims, "Input type": ["float"] * 3}
    )
    assert cost is not None
    assert cost.shape == (2, 8, 4, 100, 100, 64)


FLOATS = ["float", "float"]


@pytest.mark.parametrize(
    "detail",
    [
        *({}, {"Input Dims": [[], []]}, {"Input Dims": "x"}),
        {"Input Dims": [[[None]], [["x"]]], "Input type": FLOATS},
        {"Input Dims": [[10**30, 2], [-4, 2]], "Input type": FLOATS},
        {"Input Dims": [[2**50, 2**50], [2**400, 1]], "Input type": FLOATS},
    ],
)
def test_without_shapes_an_operator_has_no_cost(detail):
    assert cost_of("aten::mm", detail) is None
    assert cost_of("aten::copy_", detail) is None
    assert cost_of("aten::add", detail) is None


@pytest.fixture(scope="module")
def slow_links(tmp_path_factory):
    """A machine of one's own, which the catalogue does not have."""
    path = tmp_path_factory.mktemp("machine") / "mine.toml"
    path.write_text('extends = "a100-8"\n[[levels]]\nrate = "1GB/s"\n')
    return platform(path)


def test_a_step_moves_to_a_machine_that_only_a_file_knows(trace, slow_links):
    there, here = (what_if(trace, on=each) for each in (slow_links, platform("a100-8")))
    assert there.outcomes[0].step > 1.5 * here.outcomes[0].step


def test_groups_larger_than_a_node_are_priced_on_a_cluster_as_on_its_nodes():
    asked = ("all_reduce", 1 << 28, 32)
    seconds = MachineLinks(platform("a100-8x4")).seconds(*asked)
    assert seconds is not None
    assert seconds == MachineLinks(platform("a100-8")).seconds(*asked)


def test_a_range_is_as_wide_as_the_replay_is_wrong(model, trace):
    answer = what_if(trace, ["no-waiting"])
    outcome = answer.outcomes[0]
    error = max(abs(each.error) for each in model.replays)
    spread = error * abs(answer.replayed_step - outcome.step)
    assert np.isclose(outcome.high - outcome.step, spread)
