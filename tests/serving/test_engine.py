import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from weft.errors import NoPlanError, UnknownNameError, UsageError
from weft.hardware import platform
from weft.models.named import transformer_of
from weft.models.transformer import Piece
from weft.models.zoo import MODELS
from weft.serving import (
    FETCHES,
    SERVERS,
    BatchLimits,
    Engine,
    Fetcher,
    Forward,
    Load,
    Question,
    find_server,
    kv_cache,
)
from weft.serving.requests import arriving

MACHINE = platform("mi300x-8")
SMALL = replace(MODELS["llama-8b"], layers=2, tp=1)
LOAD = Load(8, 512, 4, 0.9, math.inf)
KNOWN: dict[str, Engine] = {}


def engine(fetch="b2b", **limits):
    """Make an engine; prices that were asked for before are kept."""
    if fetch not in KNOWN:
        cache = kv_cache(SMALL, MACHINE.require_device())
        forward = next((e.forward for e in KNOWN.values()), None)
        forward = forward or Forward(SMALL, MACHINE.resized(1))
        KNOWN[fetch] = Engine(forward, cache, Fetcher(MACHINE, fetch, cache.block_bytes))
    return replace(KNOWN[fetch], limits=BatchLimits(**limits))


@settings(max_examples=25)
@given(
    count=st.integers(1, 12),
    prompt=st.integers(1, 300),
    output=st.integers(1, 5),
    hit=st.floats(0, 1),
    rate=st.sampled_from([1.0, 1e3, 1e5, math.inf]),
    batch=st.sampled_from([1, 3, 64]),
    fetch=st.sampled_from(list(FETCHES)),
    ahead=st.booleans(),
)
def test_every_request_is_answered_whole(count, prompt, output, hit, rate, batch, fetch, ahead):
    requests = arriving(count, prompt=prompt, output=output, hit=hit, rate=rate)
    found = engine(fetch, batch=batch, tokens=256, ahead=ahead).serve(requests)
    assert found.tokens == count * output
    assert len(found.first) == count
    assert len(found.gaps) == count * (output - 1)
    assert (found.first > 0).all()
    assert (found.gaps > 0).all()
    assert found.seconds >= found.computing > 0
    last = requests[-1].arrival
    assert found.seconds >= last + found.first[-1] * (1 - 1e-9) - 1e-12


def test_a_request_alone_waits_for_its_blocks_then_for_its_pass():
    (request,) = arriving(1, prompt=512, output=1, hit=0.5)
    one = engine("batched")
    found = one.serve([request])
    fetched = one.fetcher.price(one.cache.blocks(256))
    computed = one.forward.seconds((Piece(1, 256, 512),))
    launch = MACHINE.require_device().host_launch
    assert found.first[0] == pytest.approx(fetched.seconds + launch + computed)
    assert found.issuing == pytest.approx(fetched.host)


def test_a_call_for_each_block_keeps_everybody_waiting():
    rows = {row["fetch"]: row for row in Question("m", SMALL, MACHINE, LOAD).rows(list(FETCHES))}
    first = [rows[name]["ttft_alone"] for name in ("per-copy", "b2b", "kernel")]
    assert first == sorted(first, reverse=True)
    assert rows["per-copy"]["throughput_gain"] == 1.0
    assert rows["b2b"]["throughput_gain"] > 1.2
    assert rows["recompute"]["copies"] == 0


def test_a_device_idles_less_where_copies_are_handed_out_ahead():
    requests = arriving(16, prompt=512, output=8, hit=0.9, rate=1e3)
    waiting, ahead = (engine("per-copy", ahead=ahead).serve(requests) for ahead in (False, True))
    assert ahead.seconds - ahead.computing < 0.9 * (waiting.seconds - waiting.computing)


def test_what_the_host_does_for_every_pass_adds_up():
    requests = arriving(1, prompt=16, output=5, hit=0.0)
    quick, slow = (engine(overhead=each).serve(requests) for each in (0.0, 1e-3))
    assert slow.seconds == pytest.approx(quick.seconds + 5e-3)


def test_a_smaller_batch_lets_the_last_wait_longer():
    requests = arriving(8, prompt=64, output=4, hit=0.0)
    one, all_of_them = (engine(batch=batch).serve(requests) for batch in (1, 8))
    assert one.first.max() > 2 * all_of_them.first.max()
    assert one.passes == 8 * 4
    assert all_of_them.passes == 4


def test_long_prompts_are_cut_into_passes():
    requests = arriving(1, prompt=1000, output=1, hit=0.0)
    assert engine(tokens=256).serve(requests).passes == 4


def test_more_than_fits_waits_for_room():
    one = engine("b2b")
    tight = replace(one, cache=replace(one.cache, room=600))
    found = tight.serve(arriving(4, prompt=512, output=4, hit=0.5))
    assert found.passes >= 4 * 4
    with pytest.raises(NoPlanError, match="a request of 1004 tokens needs more than the 600"):
        tight.serve(arriving(1, prompt=1000, output=4, hit=0.5))


def test_a_kernel_that_copies_slows_what_computes():
    forward = engine().forward
    pieces = (Piece(1, 4096, 4096),)
    assert forward.slowdown(pieces, 0, 40e9) == 1.0
    assert forward.slowdown(pieces, 64, 40e9) > 1.05


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"count": 0}, "are nothing"),
        ({"prompt": 0}, "are nothing"),
        ({"count": 10**20}, "are too many"),
        ({"prompt": 10**20}, "are too many"),
        ({"hit": 1.01}, "no share of a prompt"),
        ({"hit": -0.1}, "no share of a prompt"),
        ({"hit": math.nan}, "no share of a prompt"),
        ({"rate": 0.0}, "never come"),
        ({"rate": -3.0}, "never come"),
        ({"rate": math.nan}, "never come"),
    ],
)
def test_a_load_that_means_nothing_is_refused(wrong, said):
    with pytest.raises(UsageError, match=said):
        replace(LOAD, **wrong).requests()


def test_what_cannot_be_served_is_refused():
    with pytest.raises(UsageError, match="cannot serve 256 requests at once"):
        BatchLimits(tokens=8)
    with pytest.raises(UnknownNameError, match="no way to fetch is called 'loop'"):
        Fetcher(MACHINE, "loop", 4096)
    with pytest.raises(UsageError, match="pp and fsdp are not served"):
        Question("m", replace(SMALL, pp=2), MACHINE, LOAD).rows(["b2b"])
    with pytest.raises(UsageError, match="a block of 0 bytes"):
        kv_cache(SMALL, MACHINE.require_device(), 0)
    with pytest.raises(NoPlanError, match="the weights need"):
        kv_cache(replace(MODELS["llama-405b"], tp=1), MACHINE.require_device())


# --- servers -------------------------------------------------------------------------------------


def closed(concurrency, rounds=3, server="vllm", **more):
    """Serve a small model with so many requests in flight."""
    found = find_server(server)
    model = transformer_of("llama-8b", {"tp": "2"})
    load = Load(concurrency * rounds, 512, 32, 0.0, math.inf)
    limits = replace(found.limits(model.layers, batch=64, concurrency=concurrency), **more)
    question = Question("llama-8b", model, platform("h100-8"), load, limits, server=found)
    return question.served("recompute", load.requests())


@pytest.mark.parametrize("server", SERVERS)
def test_a_closed_loop_answers_all_and_never_has_more_in_flight(server):
    outcome = closed(4, server=server)
    assert outcome.tokens == 4 * 3 * 32
    assert len(outcome.gaps) == 4 * 3 * 31
    assert (outcome.first > 0).all()
    # Little's law: requests in flight are their rate times how long each is there.
    each = outcome.first.mean() + 31 * outcome.gaps.mean()
    assert 12 / outcome.seconds * each <= 4 * (1 + 1e-9)


def test_passes_that_are_alike_are_as_long_together_as_one_by_one():
    alone = closed(1, rounds=1)
    assert alone.passes == 32
    assert alone.gaps.sum() == pytest.approx(alone.seconds - alone.first[0], rel=1e-6)


def test_prompts_first_delay_answers_and_prompts_among_answers_delay_prompts():
    mixed, apart = (closed(16, mixed=each, tokens=512) for each in (True, False))
    assert apart.gaps.max() > mixed.gaps.max()


def test_an_unknown_server_is_told_which_are_known():
    with pytest.raises(UnknownNameError, match="vlm"):
        find_server("vlm")
    with pytest.raises(UsageError, match="'x' is not a version"):
        find_server("vllm@x")


@pytest.mark.parametrize(
    ("name", "version", "overhead"), [("vllm@0.12.0", "", 1.5e-3), ("vllm", "0.18.0", 0.1e-3)]
)
def test_a_server_is_that_of_a_version_or_the_newest(name, version, overhead):
    assert find_server(name, version).overhead == overhead
    assert find_server("vllm") == find_server("vllm", "99")


def test_tokens_wait_for_the_process_that_sends_them():
    fast, slow = closed(8, stream=0.0), closed(8, stream=2e-3)
    assert slow.seconds >= slow.tokens * 2e-3
    assert slow.gaps.mean() > 1.5 * fast.gaps.mean()
    assert slow.seconds < slow.tokens * 2e-3 + 0.5 * fast.computing  # passes go on meanwhile


def test_a_request_that_is_seen_later_waits_for_its_first_token_only():
    soon, late = closed(8, lag=0), closed(8, lag=10)
    assert late.first[8:].mean() > soon.first[8:].mean() + 5 * soon.gaps.min()
    assert late.first[:8].mean() == pytest.approx(soon.first[:8].mean())  # nobody was answered yet


def test_passes_with_prompts_take_their_launches_in_addition():
    replayed, launched = closed(1, eager=0.0), closed(1, eager=5e-3)
    assert launched.first[0] - replayed.first[0] == pytest.approx(5e-3)
    assert launched.gaps.mean() == pytest.approx(replayed.gaps.mean())


def test_a_prompt_that_is_not_cut_waits_until_all_of_it_fits():
    cut, whole = (closed(4, rounds=1, tokens=768, chunked=each) for each in (True, False))
    assert (cut.passes, whole.passes) == (34, 35)
    assert closed(4, rounds=1, tokens=500, chunked=False).passes == 35  # one always goes


def test_lengths_are_drawn_between_the_shortest_and_the_given_one():
    found = arriving(200, prompt=1000, output=100, hit=0.5, shortest=0.8)
    assert min(each.prompt for each in found) == pytest.approx(800, abs=10)
    assert max(each.prompt for each in found) <= 1000
    assert all(each.cached == each.prompt // 2 for each in found)
    with pytest.raises(UsageError, match="shortest"):
        arriving(1, prompt=1, output=1, hit=0.0, shortest=0.0)


def test_times_of_a_known_server_have_ranges_and_others_have_none():
    one = Load(1, 64, 4, 0.0, math.inf)
    (known,) = Question("m", SMALL, MACHINE, one, server=find_server("vllm")).rows(["recompute"])
    (unknown,) = Question("m", SMALL, MACHINE, one).rows(["recompute"])
    for key in ("ttft", "itl"):
        assert known[f"{key}_low"] < known[key] < known[f"{key}_high"]
        assert unknown[f"{key}_low"] is None
        assert unknown[f"{key}_high"] is None
