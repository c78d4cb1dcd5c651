from dataclasses import replace

import pytest

from weft.collectives import FETCH_METHODS, fetch, fetch_platform
from weft.cost import price
from weft.errors import UnknownNameError, UsageError
from weft.hardware import platform
from weft.models.transformer import Piece
from weft.models.transformer_step import build
from weft.models.zoo import MODELS
from weft.schedule import Cost
from weft.serving import REDUCTIONS, Fetcher, Forward, find_server, kv_cache
from weft.serving.cache import weight_bytes
from weft.simulator import simulate
from weft.step import NO_HOST, StepEngine

MACHINE = platform("mi300x-8")
LLAMA = replace(MODELS["llama-70b"], tp=8)
MIXTRAL = replace(MODELS["mixtral-8x7b"], tp=1, ep=8)


@pytest.mark.parametrize("way", FETCH_METHODS)
@pytest.mark.parametrize("block", [4 << 10, 32 << 10])
def test_the_line_through_two_fetches_meets_a_longer_one(way, block):
    network = fetch_platform(MACHINE, way, block_bytes=block)
    longer = simulate(fetch(6000, block, way), network).seconds
    assert Fetcher(MACHINE, way, block).price(6000).seconds == pytest.approx(longer, rel=5e-3)


def test_a_loop_keeps_the_host_busy_and_engines_of_their_own_do_not():
    looped, b2b = (Fetcher(MACHINE, name, 4096).price(4096) for name in ("per-copy", "b2b"))
    assert looped.host == pytest.approx(looped.seconds, rel=0.01)
    assert b2b.host < 0.1 * b2b.seconds


def test_large_copies_of_the_runtime_wait_for_each_other():
    for name in ("per-copy", "batched"):
        small, large = (Fetcher(MACHINE, name, size << 10).price(4096).seconds for size in (16, 17))
        assert large > 1.5 * small
    small, large = (Fetcher(MACHINE, "b2b", size << 10).price(4096).seconds for size in (16, 17))
    assert large < 1.05 * small


def test_a_cache_has_the_published_blocks():
    device = MACHINE.require_device()
    assert kv_cache(replace(MODELS["llama-8b"], tp=1), device).block_bytes == 32 << 10
    assert kv_cache(replace(LLAMA, tp=4), device).block_bytes == 8 << 10
    whole = kv_cache(LLAMA, device, 4096)
    assert whole.blocks(16) * 4096 == 16 * whole.token_bytes
    assert weight_bytes(LLAMA) * 8 == pytest.approx(141e9, rel=0.01)


def test_a_pass_is_the_sum_of_its_layers():
    pieces = (Piece(8, 1, 1024), Piece(1, 256, 512))
    short, long = (Forward(replace(LLAMA, layers=n), MACHINE).seconds(pieces) for n in (2, 5))
    one = Forward(replace(LLAMA, layers=1), MACHINE).seconds(pieces)
    assert long == pytest.approx(one + 4 * (short - one))


@pytest.mark.parametrize("model", [LLAMA, MIXTRAL, replace(MODELS["mixtral-8x7b"], tp=8)])
@pytest.mark.parametrize("piece", [Piece(64, 1, 8192), Piece(4, 2048, 2048)])
def test_a_pass_alone_takes_what_the_step_engine_simulates(model, piece):
    device = replace(MACHINE.require_device(), host_launch=0.0)  # of a graph that is replayed
    machine = replace(MACHINE, device=device)
    forward, kind = Forward(model, machine), model.kinds[0]
    graph, executions = forward._laid_out((piece,), 1, kind)
    run = StepEngine(graph, machine, forward.prices, host=NO_HOST).run(executions)
    assert forward._alone((piece,), 1, kind) == pytest.approx(run.seconds, rel=1e-6)


def test_pieces_are_computed_together():
    step = build("pass", replace(LLAMA, layers=1), 8, (Piece(8, 1, 1024), Piece(2, 16, 64)))
    ops = step.steps[0].ops
    attention = [op.cost.shape for op in ops if op.cost and op.cost.family == "attention"]
    assert [(shape[0], shape[3], shape[4]) for shape in attention] == [(8, 1, 1024), (2, 16, 64)]
    products = {op.name: op.cost.shape for op in ops if op.cost and op.cost.family == "gemm"}
    assert products["up"][0] == 8 + 32
    assert products["head"][0] == 8 + 2


def test_more_of_anything_takes_longer():
    forward = Forward(LLAMA, MACHINE)
    base = forward.seconds((Piece(8, 1, 1024),))
    assert forward.seconds((Piece(64, 1, 1024),)) > base
    assert forward.seconds((Piece(8, 1, 65536),)) > base
    assert forward.seconds((Piece(8, 1, 1024), Piece(1, 512, 512))) > base


def test_the_fastest_way_to_sum_is_no_slower_than_any():
    pieces = (Piece(8, 1, 1024),)
    taken = {name: Forward(LLAMA, MACHINE, name).seconds(pieces) for name in REDUCTIONS}
    assert taken["auto"] <= min(taken.values()) * (1 + 1e-9)
    assert len(set(taken.values())) > 1


def test_experts_on_several_ranks_exchange_tokens():
    taken = {
        name: Forward(MIXTRAL, MACHINE, name).seconds((Piece(8, 1, 1024),))
        for name in ("library", "dma", "auto")
    }
    assert taken["dma"] != taken["library"]
    assert taken["auto"] == pytest.approx(min(taken["dma"], taken["library"]))


def test_ways_to_sum_that_do_not_apply_are_refused():
    with pytest.raises(UnknownNameError, match="unknown reduction of ranks 'tree'"):
        Forward(LLAMA, MACHINE, "tree")
    with pytest.raises(UsageError, match="stay inside a node"):
        Forward(replace(LLAMA, tp=16), platform("mi300x-8x2"), "fused")


def test_a_pass_has_layers_of_every_kind():
    model, pieces = replace(MIXTRAL, layers=4), (Piece(8, 1, 1024),)
    none, half, every = (
        Forward(replace(model, dense_layers=n), MACHINE).seconds(pieces) for n in (4, 2, 0)
    )
    assert every > 1.1 * none
    assert half == pytest.approx((none + every) / 2)
    windowed, full = replace(LLAMA, layers=4, window=128), replace(LLAMA, layers=4)
    long = (Piece(64, 1, 8192),)
    short, mixed, whole = (
        Forward(each, MACHINE).seconds(long)
        for each in (windowed, replace(windowed, full_every=2), full)
    )
    assert mixed == pytest.approx((short + whole) / 2)


def test_ranks_of_tp_compute_their_experts_on_all_tokens_and_sum_once():
    model = replace(MIXTRAL, tp=8, ep=8, etp=1, layers=1, mode="prefill", batch=1)
    ops = build("pass", model, 8, (Piece(16, 1, 64),)).steps[0].ops
    (experts,) = (op.cost for op in ops if op.name == "experts" and op.cost)
    assert experts.shape == (16, 4096, 14336, 2, 8, 8, 1, 1)
    assert [op.name for op in ops if op.collective] == ["all_reduce"] * 2


def test_experts_have_a_dtype_of_their_own():
    model = replace(MODELS["gpt-oss-120b"], tp=1, math="bf16", expert_math="int4_wo")
    ops = build("pass", replace(model, layers=1, batch=1, mode="prefill"), 1, (Piece(4, 1, 64),))
    dtypes = {op.name: op.cost.dtype for op in ops.steps[0].ops if op.cost}
    assert (dtypes["experts"], dtypes["qkv"], dtypes["head"]) == ("int4_wo", "bf16", "bf16")
    assert weight_bytes(model) == pytest.approx(62e9, rel=0.05)


def test_a_cache_in_fp8_has_twice_the_room_and_windows_take_none():
    device = platform("h100-8").require_device()
    wide, narrow = (kv_cache(replace(LLAMA, kv_dtype=each), device) for each in ("", "fp8"))
    assert wide.token_bytes == 2 * narrow.token_bytes
    half = kv_cache(replace(LLAMA, window=128, full_every=2), device)
    assert half.token_bytes * 2 == wide.token_bytes


def test_latent_attention_reads_its_keys_once():
    device = platform("h100-8").require_device()
    shape = 64, 16, 1, 8192, 576, 0, 2
    once, twice = (
        price(Cost("decode", (*shape, latent), "bf16"), device).seconds for latent in (1, 0)
    )
    assert 1.6 * once < twice
    many = price(Cost("decode", (64, 128, *shape[2:], 1), "bf16"), device).seconds
    assert many > 64 * 128 * 8192 * 576 * 4 / 990e12  # bound by products


def test_weights_that_both_ends_share_are_stored_once():
    model = replace(MODELS["llama-3.2-1b"], tp=1)
    assert weight_bytes(model) == pytest.approx(2 * model.parameters, rel=1e-3)


@pytest.mark.parametrize(("dtype", "kv_dtype", "item"), [("fp8", "", 2), ("bf16", "nvfp4", 1)])
def test_keys_and_values_are_cached_as_they_are_computed(dtype, kv_dtype, item):
    model = replace(LLAMA, dtype=dtype, kv_dtype=kv_dtype)
    token = kv_cache(model, platform("h100-8").require_device()).token_bytes
    assert token == 2 * 80 * 1 * 128 * item  # layers, heads of a rank, width of one


def test_a_model_in_fp8_is_served_like_its_products_in_fp8():
    server = find_server("trtllm")
    by_products = server.served(replace(LLAMA, math="fp8"))
    whole = server.served(replace(LLAMA, dtype="fp8"))
    assert (whole.math, whole.kv_dtype) == (by_products.math, by_products.kv_dtype)


def test_every_piece_of_a_pass_has_attention_whatever_training_would_run():
    pieces = Piece(8, 1, 1024), Piece(4, 2048, 2048)
    flash, eager = (
        Forward(replace(LLAMA, flash=f), MACHINE).seconds(pieces) for f in (True, False)
    )
    assert eager == flash
