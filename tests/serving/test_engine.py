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
    DisaggregatedEngine,
    Engine,
    Fetcher,
    Forward,
    Load,
    Question,
    WorkerPool,
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


@pytest.mark.parametrize("count", [1, 6])
def test_the_host_takes_longer_for_a_pass_over_more_requests(count):
    requests = arriving(count, prompt=16, output=5, hit=0.0)
    quick, slow = (engine(request_overhead=each).serve(requests) for each in (0.0, 1e-3))
    assert slow.seconds == pytest.approx(quick.seconds + count * 5e-3)


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
        ({"count": 0}, "at least 1"),
        ({"prompt": 0}, "at least 1"),
        ({"count": 10**20}, "at most"),
        ({"prompt": 10**20}, "at most"),
        ({"hit": 1.01}, "from 0 to 1"),
        ({"hit": -0.1}, "from 0 to 1"),
        ({"hit": math.nan}, "from 0 to 1"),
        ({"rate": 0.0}, "above 0"),
        ({"rate": -3.0}, "above 0"),
        ({"rate": math.nan}, "above 0"),
    ],
)
def test_a_load_that_means_nothing_is_refused(wrong, said):
    with pytest.raises(UsageError, match=said):
        replace(LOAD, **wrong).requests()


def test_what_cannot_be_served_is_refused():
    with pytest.raises(UsageError, match="cannot serve 256 requests at once"):
        BatchLimits(tokens=8)
    with pytest.raises(UnknownNameError, match="unknown fetch method 'loop'"):
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
    limits = replace(found.limits(model, batch=64, concurrency=concurrency), **more)
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


def test_prompts_that_are_held_back_are_computed_together():
    limits = {"server": "trtllm", "rounds": 8}
    soon, held = (closed(8, **limits, held_passes=passes, held_tokens=2048) for passes in (0, 10))
    assert held.computing < soon.computing
    assert held.tokens == soon.tokens


def test_an_unknown_server_is_told_which_are_known():
    with pytest.raises(UnknownNameError, match="vlm"):
        find_server("vlm")
    with pytest.raises(UsageError, match="'x' is not a version"):
        find_server("vllm@x")


@pytest.mark.parametrize(
    ("name", "version", "overhead"), [("vllm@0.12.0", "", 30e-6), ("vllm", "0.18.0", 3e-6)]
)
def test_a_server_is_that_of_a_version_or_the_newest(name, version, overhead):
    assert find_server(name, version).request_overhead == overhead
    assert find_server("vllm") == find_server("vllm", "99")


def test_tokens_wait_for_the_process_that_sends_them():
    fast, slow = closed(8, stream=0.0), closed(8, stream=2e-3)
    assert slow.seconds >= slow.tokens * 2e-3
    assert slow.gaps.mean() > 1.5 * fast.gaps.mean()
    assert slow.seconds < slow.tokens * 2e-3 + 0.5 * fast.computing  # passes go on meanwhile


def test_what_is_done_before_the_scheduler_sees_a_request_delays_its_first_token_only():
    soon, late = (closed(1, admission=each) for each in (0.0, 20e-3))
    assert late.first.mean() == pytest.approx(soon.first.mean() + 20e-3)
    assert late.gaps.mean() == pytest.approx(soon.gaps.mean())


def test_prompts_that_come_together_are_cut_into_tokens_one_after_the_other():
    still = {"admission": 0.0, "tokens": 512, "mixed": False}
    soon, late = (closed(4, 1, **still, tokenizing=each).first for each in (0.0, 1e-3))
    assert late.min() - soon.min() == pytest.approx(0.512, rel=0.01)
    assert late.max() - soon.max() == pytest.approx(4 * 0.512, rel=0.1)


def test_a_pipelined_server_lets_a_request_wait_for_one_more_pass():
    waits = [closed(2, rounds=20, pipelined=each, admission=1e-3).first for each in (False, True)]
    pace = closed(2).gaps.min()
    # Requests of one length come in turn, each while the other is answered.
    assert waits[1][2:].mean() - waits[0][2:].mean() == pytest.approx(pace, rel=0.3)


def test_a_pipelined_server_that_idles_starts_a_request_at_once():
    alone = [closed(1, pipelined=each).first for each in (False, True)]
    assert alone[0] == pytest.approx(alone[1])


def test_passes_with_prompts_take_as_long_as_their_launches():
    replayed, launched, hidden = (closed(1, eager=each) for each in (0.0, 0.5, 1e-6))
    assert launched.first[0] - replayed.first[0] == pytest.approx(0.5, rel=0.1)
    assert launched.gaps.mean() == pytest.approx(replayed.gaps.mean())
    assert hidden.first[0] == replayed.first[0]


def test_layers_with_experts_take_launches_of_their_own():
    server = replace(find_server("trtllm"), eager=1e-3, eager_experts=3e-3)
    model = transformer_of("mixtral-8x7b", {"tp": "8"})
    dense = replace(model, dense_layers=model.layers - 2)
    both = [server.limits(each, batch=8).eager for each in (model, dense)]
    assert both == pytest.approx([3e-3 * model.layers, 1e-3 * (model.layers - 2) + 6e-3])


def test_passes_are_linear_in_the_context_of_answers():
    forward = Forward(transformer_of("llama-8b", {"tp": "1"}), platform("h100-8").resized(1))
    two, three, four = (forward.seconds((Piece(64, 1, keys),)) for keys in (2048, 3072, 4096))
    assert three == pytest.approx((two + four) / 2)
    low, exact, high = (
        forward._alone((Piece(64, 1, keys),), 1, forward.model.kinds[0])
        for keys in (2048, 3072, 4096)
    )
    assert exact == pytest.approx((low + high) / 2, rel=0.03)


def test_a_prompt_that_is_not_cut_waits_until_all_of_it_fits():
    at_once = {"admission": 0.0, "tokenizing": 0.0, "pipelined": False}
    cut, whole, one = (
        closed(4, rounds=1, tokens=tokens, chunked=each, **at_once)
        for tokens, each in ((768, True), (768, False), (500, False))
    )
    assert (cut.passes, whole.passes, one.passes) == (34, 35, 35)  # one always goes


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


# --- disaggregated -------------------------------------------------------------------------------


def apart(count=6, prefill=1, decode=1, output=8, transfer=0.0, **limits):
    """Serve with prompts and answers on workers of their own; prices that are known are kept."""
    forward = engine().forward
    rules = BatchLimits(**{"batch": 64, "tokens": 512, **limits})
    pools = (WorkerPool(prefill, forward, rules), WorkerPool(decode, forward, rules))
    requests = arriving(count, prompt=512, output=output, hit=0.0)
    return DisaggregatedEngine(*pools, transfer).serve(requests)


@pytest.mark.parametrize("concurrency", [0, 1, 3])
@pytest.mark.parametrize("output", [1, 8])
def test_workers_apart_answer_every_request_whole(concurrency, output):
    found = apart(output=output, concurrency=concurrency, decode=2)
    assert len(found.gaps) == 6 * (output - 1)
    assert (found.first > 0).all()
    assert (found.gaps > 0).all()
    assert found.tokens == 6 * output
    each = found.first.mean() + (found.gaps.sum() / 6)
    assert 6 / found.seconds * each <= (concurrency or 6) * (1 + 1e-9)  # Little's law


def test_a_first_token_from_workers_apart_waits_for_its_prompt_and_the_move_of_its_keys():
    forward, launch = engine().forward, MACHINE.require_device().host_launch
    alone, moved = (apart(1, transfer=each) for each in (0.0, 1e-5))
    assert alone.first[0] == pytest.approx(forward.seconds((Piece(1, 512, 512),)) + launch)
    assert moved.first[0] - alone.first[0] == pytest.approx(512e-5)
    assert moved.gaps == pytest.approx(alone.gaps)
    assert alone.seconds == pytest.approx(alone.first[0] + alone.gaps.sum())


def test_prompts_elsewhere_do_not_delay_answers():
    lengths = {"output": 64, "concurrency": 3}
    found = apart(12, prefill=1, decode=1, **lengths)
    assert found.gaps.max() < 2.5 * found.gaps.min()
    together = engine("recompute", tokens=512, batch=64, concurrency=3)
    same = together.serve(arriving(12, prompt=512, output=64, hit=0.0))
    assert same.gaps.max() > found.gaps.max()


def test_more_workers_for_prompts_shorten_the_first_token():
    one, three = (apart(6, prefill=each) for each in (1, 3))
    assert three.first.mean() < 0.6 * one.first.mean()


def test_workers_apart_answer_no_more_requests_at_once_than_a_batch_has():
    """Seconds of four requests one after the other, with room for one."""
    one, four = (apart(4, output=32, batch=each) for each in (1, 4))
    alone = apart(1, output=32)
    assert one.gaps.min() >= alone.gaps.min()
    assert one.seconds > 4 * alone.gaps.sum()
    assert four.seconds < 2 * alone.seconds + 3 * alone.first[0]
    assert one.tokens == four.tokens == 4 * 32
