"""The search for a layout: what divides, what fits, and that the estimate ranks as predicted."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import pytest

from weft.cli import main
from weft.cli.layout_tables import difference
from weft.errors import NoPlanError, UsageError
from weft.hardware import platform
from weft.models.named import job_of
from weft.models.transformer import Transformer
from weft.models.transformer_layout import Layout
from weft.models.transformer_memory import fullest_memory
from weft.planner.job_prediction import predict_job
from weft.planner.layout_search import LayoutSearch, _chunks, _least_bytes, _stages
from weft.planner.prices import Prices, default_library
from weft.units import format_size

pytestmark = pytest.mark.thorough

MACHINE = platform("h100-8")
SMALL = {"layers": "8", "batch": "32", "seq": "2048"}


def search(settings=None, given=(), machine=MACHINE):
    job = job_of("llama-8b", machine.num_ranks, SMALL | (settings or {}))
    return LayoutSearch(job, machine, frozenset(given))


def test_every_layout_found_fits_and_is_sorted():
    made = search()
    found = made.best(count=4, refined=4)
    assert 0 < made.num_fitting <= made.num_layouts
    assert [each.seconds for each in found] == sorted(each.seconds for each in found)
    for each in found:
        memory = each.prediction.graph.memory
        assert memory is not None
        assert memory.total <= MACHINE.require_device().memory_bytes


def test_processes_find_what_one_finds():
    alone, shared = search().best(3, 3), search().best(3, 3, cores=2)
    assert [each.settings for each in shared] == [each.settings for each in alone]
    assert [each.seconds for each in shared] == [each.seconds for each in alone]


def test_settings_that_were_given_are_kept():
    found = search({"tp": "4", "recompute": "full"}, ("tp", "recompute")).best(3, 3)
    assert {each.job.model.tp for each in found} == {4}
    assert {each.job.model.recompute for each in found} == {"full"}


@pytest.mark.parametrize(
    "settings",
    [{"dp": "2"}, {"sp": "false", "tp": "4"}, {"count_ends": "true", "pp": "2", "dp": "4"}],
)
def test_settings_that_others_imply_are_kept_where_given(settings):
    made = search(settings, tuple(settings))
    asked = made.job.model
    for each in made.best(3, 3):
        found = each.job.model
        assert [getattr(found, key) for key in settings] == [getattr(asked, k) for k in settings]


@pytest.mark.parametrize("settings", [{"shard": "4"}, {"micro_batch": "0"}])
def test_layouts_are_estimated_with_settings_that_one_stage_alone_cannot_have(settings):
    assert search(settings, tuple(settings)).best(3, 3)


@pytest.mark.parametrize(
    "settings",
    [
        {"lora": "16"},
        {"frozen": "true"},
        {"zero": "2"},
        {"fsdp": "true", "shard": "2"},
    ],
)
def test_no_layout_is_skipped_that_its_memory_lets_in(settings):
    """The bound that skips layouts is below what the memory model says of them."""
    full = {"layers": "64", "recompute": "full", "micro_batch": "1", "seq": "128"}
    for name in ("llama-8b", "mixtral-8x7b"):
        for pp in ("1", "2", "4"):
            model = job_of(name, 8, full | settings | {"batch": "8", "pp": pp}).model
            assert isinstance(model, Transformer)
            memory = fullest_memory(model, Layout(model, 8)).total
            assert _least_bytes(model, 8) <= memory


@pytest.mark.parametrize(
    "settings",
    [
        {"tp": "8", "sp": "true", "recompute": "full"},
        {"fsdp": "true", "dp": "8"},
        {"pp": "4", "interleave": "2", "micro_batch": "1"},
    ],
)
def test_what_is_said_to_do_next_gives_the_layout_whatever_the_job_has(settings):
    made = search(settings)
    best = made.best(1, 4)[0]
    asked = made.job.model
    assert isinstance(asked, Transformer)
    changes = {key: str(value).lower() for key, value in best.changes_of(asked).items()}
    again = job_of("llama-8b", 8, SMALL | settings | changes)
    assert again.model == best.job.model


def test_the_numbers_of_layers_of_a_job_are_of_its_own_stages():
    uneven = {"pp": "4", "stage_layers": "1-3-3-1"}
    plain, made = search(), search(uneven)
    best = [each.best(3, 3)[0] for each in (plain, made)]
    assert made.num_layouts == plain.num_layouts
    assert best[0].job.model == best[1].job.model
    asked = made.job.model
    assert isinstance(asked, Transformer)
    changes = {key: str(value).lower() for key, value in best[1].changes_of(asked).items()}
    again = job_of("llama-8b", 8, SMALL | uneven | changes).model
    assert isinstance(again, Transformer)
    assert isinstance(best[1].job.model, Transformer)
    assert Layout(again, 8).chunks == Layout(best[1].job.model, 8).chunks
    kept = search(uneven, ("stage_layers",)).best(1, 1)[0].job.model
    assert kept.stage_layers == (1, 3, 3, 1)


def test_a_job_that_asks_for_fsdp_gets_it():
    found = search({"fsdp": "true"}, ("zero",)).best(3, 3)
    assert {each.job.model.zero for each in found} == {3}


def test_the_best_is_no_slower_than_the_layout_of_the_user():
    best = search().best(1, 8)[0]
    mine = predict_job(job_of("llama-8b", 8, SMALL | {"tp": "8", "sp": "true"}), MACHINE)
    assert best.seconds <= mine.seconds


@pytest.mark.parametrize(
    ("name", "machine", "settings"),
    [
        ("llama-8b", MACHINE, SMALL | {"layers": "4"}),
        ("llama-8b", platform("h100-8x2"), SMALL | {"stack": "eager", "tp": "2", "vp": "1"}),
        ("mixtral-8x7b", MACHINE, SMALL | {"layers": "4", "zero": "1", "micro_batch": "2"}),
    ],
)
def test_the_best_are_those_of_an_exhaustive_search(name, machine, settings):
    job = job_of(name, machine.num_ranks, settings)
    names = {"vp": "interleave"}
    made = LayoutSearch(job, machine, frozenset(names.get(key, key) for key in settings))
    found = made.best(5, 5, most=300)
    assert made.num_open == 0
    prices = Prices(machine, default_library(machine))
    every = sorted(
        predict_job(
            replace(job, model=model), machine, prices=prices, brief=True, ranged=False
        ).seconds
        for model in made._fitting()
    )
    assert made.num_predicted < len(every)
    assert [each.seconds for each in found] == pytest.approx(every[:5], rel=1e-9)


@pytest.mark.parametrize(
    ("name", "machine", "settings", "low", "high"),
    [
        ("llama-8b", MACHINE, SMALL, 0.96, 1.12),
        ("llama-70b", platform("h100-8x16"), {"batch": "1024"}, 0.95, 1.03),
        ("deepseek-v3", platform("h100-8x256"), {"batch": "8192"}, 0.95, 1.06),
    ],
)
def test_estimates_are_near_predictions(name, machine, settings, low, high):
    made = LayoutSearch(job_of(name, machine.num_ranks, settings), machine)
    prices = Prices(machine, default_library(machine))
    models = list(made._fitting())
    for model in models[:: len(models) // 3]:
        job = replace(made.job, model=model)
        found = predict_job(job, machine, prices=prices, brief=True, ranged=False).seconds
        assert low < found / made.estimate(model, prices) < high


def test_layouts_that_were_not_predicted_though_they_may_win_are_counted():
    made = search()
    made.best(10, 10, most=10)
    assert made.num_predicted == 10
    assert made.num_open > 0


def test_recomputing_activations_of_experts_is_tried():
    kept = {"layers": "8", "batch": "32", "seq": "4096", "micro_batch": "4"}
    job = job_of("mixtral-8x7b", 8, kept)
    made = LayoutSearch(job, MACHINE, frozenset(("tp", "pp", "cp", "micro_batch")))
    # recomputing attention saves nothing where it does not write its scores
    assert {model.recompute for model in made._fitting()} == {"none", "moe_act", "full"}


def test_stages_and_chunks_are_what_layers_allow():
    assert _stages(126, 64) == [1, 2, 3, 4, 6, 7, 8, 9, 14, 16, 32, 64]
    assert 8 in _chunks(126, 8)  # with the embedding and the head 128
    assert _chunks(80, 4)[:4] == [1, 2, 4, 5]
    assert _chunks(80, 1) == [1]


def test_what_cannot_be_laid_out_is_refused():
    with pytest.raises(UsageError, match="dlrm"):
        LayoutSearch(job_of("dlrm", 8), MACHINE).best()
    with pytest.raises(NoPlanError, match=r"divides 8 ranks with .*tp=7"):
        search({"tp": "7"}, ("tp",)).best()


def test_a_search_that_finds_nothing_says_what_the_smallest_layout_needs():
    large = {"layers": "126", "hidden": "16384", "ffn": "53248", "heads": "128"}
    made = search(large, ("micro_batch",))
    with pytest.raises(NoPlanError) as wrong:
        made.best()
    ranks, kinds = MACHINE.num_ranks, ("none", "selective", "full")
    models = [replace(each, recompute=kind) for each, _ in made._divided() for kind in kinds]
    needs = [fullest_memory(model, Layout(model, ranks)).total for model in models]
    has = format_size(MACHINE.require_device().memory_bytes)
    assert len(models) == made.num_layouts
    told = f"of {made.num_layouts} layouts of .* fits in {has} per rank; the smallest needs "
    assert re.search(told + re.escape(format_size(min(needs))), str(wrong.value))
    assert wrong.value.hint == (
        "Try: more ranks; a device with more memory; leave micro_batch to the search."
    )


def test_the_verb_prints_layouts_as_json(capsys):
    words = ["plan", "llama-8b", "--on", "h100-8", "--search", "layout", "--json"]
    words += ["--set", "layers=4", "--set", "batch=8", "--set", "seq=1024", "--set", "tp=2"]
    assert main(words) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["verb"] == "plan"
    assert found["fitting"] <= found["layouts"]
    assert {"settings", "seconds", "memory", "mfu", "exposed"} <= set(found["results"][0])
    assert all(row["settings"]["tp"] == 2 for row in found["results"])
    assert main(["plan", "gpt2", "--on", "h100-8", "--search", "fast"]) == 2
    assert "must be layout" in capsys.readouterr().err


def test_a_layout_is_explained_against_the_job_as_given():
    made = search()
    best, own = made.best(1, 4)[0], made.own()
    assert own is not None
    assert own.job == made.job
    told = difference(best, own)
    share = 100 * (own.seconds / best.seconds - 1)
    assert told.startswith(f"{abs(share):.1f} % {'faster' if share >= 0 else 'slower'}")


def test_settings_of_a_choice_make_the_same_layout_again():
    for choice in search().best(4, 4):
        words = {key: str(value).lower() for key, value in choice.settings.items()}
        again = job_of("llama-8b", 8, SMALL | words)
        assert again.model == choice.job.model


def test_a_price_of_an_hour_gives_the_cost_of_a_million_tokens():
    job = job_of("llama-8b", 8, SMALL)
    rates = job.throughput(2.0, 1e15, gpu_hour=3.6)
    assert rates["cost_per_million_tokens"] == pytest.approx(8 * 3.6 * 2 / 3600 / job.tokens * 1e6)
    assert "cost_per_million_tokens" not in job.throughput(2.0, 1e15)


def test_a_setting_that_no_layout_takes_is_named():
    with pytest.raises(NoPlanError, match="unknown recompute 'most'"):
        search({"recompute": "most"}, ("recompute",)).best()
