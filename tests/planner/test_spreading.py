"""A named model on the ranks of a platform: the least that makes it fit, nothing given changed."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.models.configs import CONFIGS
from weft.errors import NoPlanError, UsageError
from weft.hardware import platform
from weft.planner.spreading import _layouts, _transformer_layouts, spread, why_spread
from weft.step import Memory, RankStep, StepGraph

H100 = platform("h100-8")


def layouts(num_ranks, node_size, **given_):
    return list(_transformer_layouts(num_ranks, node_size, given_))


def test_a_model_that_fits_is_taken_as_it_is():
    graph, added = spread("gpt2", H100, {"layers": "1"})
    assert added == {}
    assert graph.num_ranks == 8


@pytest.mark.parametrize(("ranks", "batch"), [(3, 4095), (7, 4095), (6, 4098)])
def test_samples_of_a_recommender_are_dealt_out_evenly_and_stay_about_as_many(ranks, batch):
    graph, added = spread("dlrm", H100.resized(ranks))
    assert added == {"batch": str(batch)}
    assert graph.num_ranks == ranks
    assert abs(batch - 4096) <= ranks / 2


@pytest.mark.parametrize("settings", [{"pp": "0"}, {"tp": "0"}, {"pp": "9" * 5000}])
def test_degrees_that_cannot_be_are_refused_before_any_layout_is_tried(settings):
    with pytest.raises(UsageError, match=next(iter(settings))):
        spread("llama-3.1-8b", H100, settings)


def test_every_rank_of_a_recommender_has_a_sample():
    many = platform("h100-8x2048")  # 16,384 ranks for 4,096 samples
    assert list(_layouts("dlrm", many, {})) == [{"batch": "16384"}]


def test_weights_are_shared_out_then_activations_computed_twice_then_tensors_split():
    shared, twice = {"fsdp": "true"}, {"fsdp": "true", "recompute": "true"}
    assert layouts(4, 2) == [
        {"batch": "4"},
        {"batch": "4"} | shared,
        {"batch": "4"} | twice,
        {"batch": "2", "tp": "2"},
        {"batch": "2", "tp": "2"} | shared,
        {"batch": "2", "tp": "2"} | twice,
    ]


def test_what_was_given_stays():
    fixed = {each.get("tp") for each in layouts(16, 8, tp="4")}
    assert fixed == {"4"}
    assert [each["batch"] for each in layouts(16, 8, tp="4")] == ["4"] * 3
    assert [each["batch"] for each in layouts(16, 2, pp="4")] == ["4"] * 3 + ["2"] * 3
    assert [each["batch"] for each in layouts(16, 2, pp="many")] == ["16"] * 3 + ["8"] * 3
    assert layouts(16, 8, tp="3") == []  # does not divide
    own = list(_layouts("gpt2", H100, {"batch": "8", "fsdp": "true"}))
    assert all(not {"batch", "fsdp"} & set(added) for added in own)
    assert own[0] == {"recompute": "true"}  # what adds nothing is not tried again


@given(st.integers(1, 64), st.sampled_from((1, 2, 4, 8)), st.sampled_from(("", "2", "4")))
def test_all_ranks_have_a_place_in_every_layout(num_ranks, node_size, stages):
    for each in layouts(num_ranks, node_size, **({"pp": stages} if stages else {})):
        split = int(each.get("tp", "1"))
        assert split <= node_size
        assert int(each["batch"]) * split * int(stages or 1) == num_ranks


def test_the_first_layout_that_fits_is_taken():
    _, added = spread("gpt2", H100.resized(3))
    assert added == {"batch": "3"}  # 8 samples do not divide among 3


def test_what_no_layout_helps_is_refused_for_its_first_reason():
    with pytest.raises(UsageError, match="tp 3"):
        spread("gpt2", H100.resized(4), {"tp": "3"})


def test_a_file_is_taken_as_it_is_or_not_at_all(tmp_path):
    step = RankStep((0, 1), ())
    file = tmp_path / "step.json"
    large = StepGraph("step", 2, (step,), memory=Memory(weights=1 << 40))
    file.write_bytes(large.to_json())
    with pytest.raises(NoPlanError, match="step needs 1 TiB"):
        spread(str(file), H100.resized(2))
    file.write_bytes(StepGraph("step", 2, (step,), memory=Memory(weights=1 << 20)).to_json())
    assert spread(str(file), H100.resized(2))[1] == {}


def test_a_given_batch_is_taken_one_sequence_at_a_time():
    assert layouts(4, 1, batch="16")[0] == {"batch": "4", "micro_batch": "1"}
    assert layouts(4, 1, batch="4")[0] == {"batch": "4"}


def test_a_configuration_of_another_program_gets_what_makes_it_fit(tmp_path):
    file = tmp_path / "config.json"
    file.write_text(json.dumps(CONFIGS["llama-3-8b"]))
    graph, added = spread(str(file), H100, {"batch": "64"})
    assert added == {"micro_batch": "1", "fsdp": "true"}
    assert graph.num_ranks == 8


def test_the_folder_of_a_model_is_its_configuration(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(CONFIGS["llama-3-8b"]))
    graph, added = spread(str(tmp_path), H100, {"batch": "64"})
    assert added == {"micro_batch": "1", "fsdp": "true"}
    assert graph.name == tmp_path.name


def test_a_batch_that_is_too_small_does_not_hide_that_no_layout_fits():
    with pytest.raises(NoPlanError, match=r"32 data-parallel ranks .* with --set .* needs .* GiB"):
        spread("deepseek-v3", platform("h100-8x4"))


def test_a_file_that_takes_its_model_from_a_setting_gets_what_makes_it_fit(tmp_path):
    path = tmp_path / "ds.json"
    path.write_text(json.dumps({"train_batch_size": 8, "bf16": {"enabled": True}}))
    _, added = spread(str(path), H100, {"model": "llama-3-8b"})
    assert added["fsdp"] == "true"


def test_the_reason_for_added_settings_is_the_one_that_refused_the_given_ones():
    machine = platform("h100-8")
    small = {"batch": "4"}
    _, added = spread("llama-8b", machine, small)
    assert added["tp"] == "2"
    assert "more than the 4 samples" in why_spread("llama-8b", machine, small)
    assert "memory" in why_spread("llama-8b", machine, {"batch": "8"})
