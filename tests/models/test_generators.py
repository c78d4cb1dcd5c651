"""Generated workloads: the work adds up, ranks share it, wrong settings are named."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from weft.errors import FormatError, UnknownNameError, UsageError
from weft.hardware import platform
from weft.models.find import find_workload
from weft.models.named import generate, job_of, tables_of, workload_names
from weft.models.pipeline import dual_passes, overlapped_passes, passes
from weft.models.tables import Table, read_tables, table_wise, zipf_of
from weft.models.transformer import Transformer
from weft.models.transformer_layout import Layout
from weft.models.transformer_memory import WORKSPACE, layer_activations, stage_memories
from weft.models.zoo import MODELS
from weft.planner.prices import Prices
from weft.schedule import Cost
from weft.step import NO_HOST, Memory, StepEngine, StepGraph, check

pytestmark = pytest.mark.thorough


def flops(graph):
    return sum(
        op.cost.flops * len(step.ranks)
        for step in graph.steps
        for op in step.ops
        if op.cost and op.cost.family == "gemm"
    )


@pytest.mark.parametrize("name", workload_names())
def test_every_workload_can_be_made(name):
    check(generate(name, 8, {"batch": "64"}))


@given(
    tp=st.sampled_from((1, 2, 4)),
    pp=st.sampled_from((1, 2, 3)),
    dp=st.sampled_from((1, 2)),
    fsdp=st.booleans(),
)
@settings(max_examples=20, deadline=None)
def test_products_are_shared_out_whatever_the_parallelism(tp, pp, dp, fsdp):
    num_ranks = tp * pp * dp
    given = {"tp": tp, "pp": pp, "batch": 12, "fsdp": fsdp}
    spread = generate("gpt2", num_ranks, {k: str(v) for k, v in given.items()})
    check(spread)
    head = 2.0 * 12 * 1024 * (-(-50257 // tp) * tp) * 768 * 3  # the vocabulary is padded
    layers = flops(generate("gpt2", 1, {"batch": "12"})) - 2.0 * 12 * 1024 * 50257 * 768 * 3
    assert flops(spread) == pytest.approx(layers + head, rel=1e-9)


def test_training_takes_three_times_the_products_of_a_forward_pass():
    given = {"batch": "1", "mode": "prefill"}
    train = flops(generate("llama-8b", 1, {"batch": "1"}))
    serving = flops(generate("llama-8b", 1, given | {"scored": "8192"}))
    assert train == pytest.approx(3 * serving)
    head = 2.0 * 128256 * 4096  # of a token: what follows the last one is all that is asked
    assert serving - flops(generate("llama-8b", 1, given)) == pytest.approx(8191 * head)
    jobs = [job_of("llama-8b", 1, given | {"scored": scored}) for scored in ("0", "8192")]
    assert jobs[1].flops - jobs[0].flops == pytest.approx(8191 * head)


def test_decoding_looks_at_the_whole_past():
    graph = generate("llama-8b", 1, {"batch": "4", "mode": "decode"})
    seen = next(op.cost.shape for op in graph.ops() if op.cost and op.name == "attention")
    assert graph.memory is not None
    assert seen[3:5] == (1, 8192)
    assert graph.memory.other == 4 * 8192 * 2 * 1024 * 32 * 2  # keys and values of all layers


@pytest.mark.parametrize(
    ("settings", "item"),
    [
        ({}, 2),
        ({"kv_dtype": "fp8"}, 1),
        ({"dtype": "fp8"}, 2),
        ({"dtype": "fp8", "kv_dtype": "fp8"}, 1),
        ({"dtype": "fp32"}, 4),
        ({"kv_dtype": "nvfp4"}, 1),
    ],
)
def test_a_cache_takes_the_bytes_that_attention_reads(settings, item):
    graph = generate("llama-8b", 1, {"batch": "4", "mode": "decode", **settings})
    (shape,) = {op.cost.shape for op in graph.ops() if op.cost and op.name == "attention"}
    assert (*shape, 0, 2)[8] == item
    assert (graph.memory or Memory()).other == 4 * 8192 * 2 * 1024 * 32 * item


def test_a_server_stores_products_as_it_multiplies_them_and_shares_them_where_asked():
    model, settings = MODELS["llama-8b"], {"batch": "8", "mode": "decode"}
    layers = 32 * model.layer_weights(model.kinds[0]).total
    ends = 2 * 128256 * 4096
    wide, narrow, shared = (
        (generate("llama-8b", 8, {**settings, **more}).memory or Memory()).weights
        for more in ({}, {"math": "fp8"}, {"fsdp": "true"})
    )
    assert (wide, narrow) == (2 * (layers + ends), layers + 2 * ends)
    assert shared == wide // 8


def test_recomputed_attention_leaves_what_its_paper_counts():
    """34 bytes of a token and hidden element are kept (arXiv 2205.05198, equation 6)."""
    model = replace(MODELS["gpt2"], flash=False, dropout=True, recompute="selective")
    kept = layer_activations(model, model.kinds[0], 4096, 4, 2)
    assert kept == pytest.approx(34 * 4096 * model.hidden, rel=0.01)


def test_modules_that_predict_further_tokens_keep_activations():
    model = replace(MODELS["llama-8b"], layers=4, pp=2, batch=2, seq=512)
    plain, more = (stage_memories(each, Layout(each, 2)) for each in (model, replace(model, mtp=1)))
    layer = layer_activations(model, model.kinds[0], 512, 1, 2)
    assert more[0] == plain[0]
    assert more[1].activations - plain[1].activations >= layer


@pytest.mark.parametrize("reshard", [True, False])
def test_a_gathered_embedding_may_be_larger_than_a_layer(reshard):
    model = replace(MODELS["gemma-2-2b"], fsdp=True, batch=8, reshard=reshard)
    (memory,) = stage_memories(model, Layout(model, 8))
    end, layer = 256000 * 2304, model.layer_weights(model.kinds[0]).total
    gathered = end + (1 if reshard else 26) * layer
    assert memory.buffers == pytest.approx(2 * (gathered + layer) + WORKSPACE, rel=1e-6)


def test_experts_exchange_tokens_twice_a_layer_and_way():
    graph = generate("mixtral-8x7b", 8, {"batch": "8", "ep": "8", "layers": "2"})
    kinds = [op.collective.kind for op in graph.ops() if op.collective]
    assert kinds.count("all_to_all") == 2 * 2 * 2


@pytest.mark.parametrize("name", ["dlrm-rm2", "gpt2"])
def test_what_was_made_is_read_as_it_was_written(name):
    graph = generate(name, 8, {"batch": "64"})
    assert StepGraph.from_json(graph.to_json()) == graph


def test_ranks_with_equal_tables_are_one_class():
    assert len(generate("dlrm-rm2", 8, {"batch": "64"}).steps) == 1
    assert len(generate("dlrm", 8, {"batch": "64"}).steps) > 1


def test_tables_go_to_the_rank_with_the_least_lookups():
    tables = tuple(Table(str(n), 100, 8, pooling) for n, pooling in enumerate((4, 3, 2, 1)))
    assert [shard.rank for shard in table_wise(tables, 2)] == [0, 1, 1, 0]


@pytest.mark.parametrize(
    ("name", "ranks", "given", "message"),
    [
        ("gpt2", 16, {"batch": "8"}, "more than the 8 samples"),
        ("dlrm", 8, {"batch": "4"}, "more than the 4 samples"),
        ("dlrm", 8, {"batch": "13"}, "does not divide among 8 ranks"),
        ("gpt2", 8, {"batch": "12"}, "does not divide among 8"),
        ("gpt2", 8, {"tp": "3"}, "do not divide into tp 3"),
        ("gpt2", 8, {"tp": "0"}, "tp: must be at least 1"),
        ("mixtral-8x7b", 8, {"ep": "0"}, "ep: must be at least 1"),
        ("dlrm", 8, {"batch": "0"}, "batch: must be at least 1"),
        ("gpt2", 8, {"tp": "8"}, "12 heads do not divide"),
        ("gpt2", 8, {"batch": "many"}, "cannot read batch='many'"),
        ("gpt2", 8, {"fsdp": "perhaps"}, "cannot read fsdp='perhaps'"),
        ("gpt2", 8, {"bathc": "8"}, "unknown setting 'bathc'"),
        ("gpt2", 8, {"mode": "guess"}, "unknown mode 'guess'"),
        ("gpt2", 8, {"ep": "2"}, "ep 2 must divide"),
        ("gpt2", 16, {"pp": "16", "batch": "1"}, "16 stages are more than 12 layers"),
        ("gpt2", 1, {"batch": "4", "micro_batch": "3"}, "do not divide into batches of 3"),
        ("gpt2", 4, {"pp": "4", "batch": "6", "interleave": "2"}, "cannot be interleaved 2 times"),
    ],
)
def test_wrong_settings_are_named(name, ranks, given, message):
    with pytest.raises(UsageError, match=message):
        generate(name, ranks, given)


def test_an_unknown_workload_is_named():
    with pytest.raises(UnknownNameError, match="unknown workload 'gpt5'"):
        generate("gpt5", 8)


def test_a_file_names_a_model_and_changes_it(tmp_path):
    file = tmp_path / "mine.toml"
    file.write_text('model = "gpt2"\nlayers = 2\nbatch = 4\n')
    graph = generate(str(file), 4)
    assert graph.name == "mine"
    assert sum(op.name == "attention" for op in graph.ops()) == 2


def test_a_file_of_tables_is_a_dlrm(tmp_path):
    file = tmp_path / "tables.toml"
    file.write_text("batch = 64\n[[tables]]\nrows = 1000\ndim = 16\ncount = 3\npooling = 5\n")
    graph = generate(str(file), 2)
    assert {o.cost.shape[3] for o in graph.ops() if o.cost and o.name == "embedding"} == {5.0}
    assert tables_of(str(file), {"batch": "32"}, 1)[1] == 32


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("rows = 3", "has no tables"),
        ("tables = [3]", "expected a table with rows and dim"),
        ("[[tables]]\nrows = 3", "dim must be a whole number"),
        ("[[tables]]\nrows = 3\ndim = 4\npooling = 0", "pooling must be above zero"),
        ("[[tables]]\nrows = 3\ndim = 4\nfoo = 0", "has 'foo'"),
        ("[[tables]]\nrows = 3\ndim = 4\ncounts = [3, -1]", r"counts must be >= 0 \(got -1 at 1\)"),
        ("[[tables]]\nrows = 3\ndim = 4\ncounts = [0, 3]", "fewer than two"),
        ("[[tables]]\nrows = 3\ndim = 4\ncounts = []", "must be a list of numbers"),
        ("[[tables]]\nrows = 3\ndim = 4\ncounts = 'many'", "must be a list of numbers"),
        ("[[tables]]\nrows = 3\ndim = 4\ncounts = [2, 'x']", "must be a list of numbers"),
        ("[[tables]]\nrows = 3\ndim = 4\ncounts = [4, 3, 2, 1]", "4 counts for 3 rows"),
        ("[[tables]]\nrows = 3\ndim = 4\ncounts = [2, 1]\nzipf = 1", "has counts and zipf"),
        ("[[tables]]\nrows = 3\ndim = 4\npooling = 'x'", "pooling must be a number"),
        ("[[tables]]\nrows = 3\ndim = 4\nzipf = -1", "zipf must be a number of zero or more"),
        ("[[tables]]\nrows = 3\ndim = 4\ncount = 0", "count must be a whole number above zero"),
        ("model = 3 3", "is not TOML"),
    ],
)
def test_wrong_files_are_named(tmp_path, text, message):
    file = tmp_path / "tables.toml"
    file.write_text(text)
    with pytest.raises(FormatError, match=message):
        tables_of(str(file), {}, 1)


def test_a_batch_that_is_none_is_named(tmp_path):
    file = tmp_path / "tables.toml"
    file.write_text("batch = -4\n[[tables]]\nrows = 3\ndim = 4\n")
    with pytest.raises(UsageError, match="cannot read batch=-4"):
        tables_of(str(file), {}, 1)


def test_a_missing_file_and_a_model_without_tables_are_named(tmp_path):
    with pytest.raises(FormatError, match="there is no file"):
        generate(str(tmp_path / "none.toml"), 2)
    with pytest.raises(UsageError, match="no embedding tables"):
        tables_of("gpt2", {}, 1)
    with pytest.raises(UsageError, match="unknown setting 'size'"):
        tables_of("dlrm", {"size": "3"}, 1)
    file = tmp_path / "odd.toml"
    file.write_text('model = "gpt2"\n[[tables]]\nrows = 3\ndim = 4\n')
    with pytest.raises(FormatError, match="gpt2 has no tables"):
        generate(str(file), 2)


def test_counts_of_a_zipf_law_give_its_power():
    assert zipf_of([1e9 / k**1.05 for k in range(1, 200)], "here") == pytest.approx(1.05, rel=0.01)
    assert zipf_of([5, 5, 5], "here") == pytest.approx(0, abs=1e-9)


def test_read_tables_numbers_equal_ones():
    found = read_tables({"tables": [{"rows": 5, "dim": 4, "count": 2}]}, "here")
    assert [table.name for table in found] == ["table0", "table1"]


@given(
    num_stages=st.integers(2, 5),
    turns=st.integers(1, 3),
    chunks=st.integers(1, 3),
    data=st.data(),
)
def test_every_micro_batch_passes_every_chunk_once_each_way(num_stages, turns, chunks, data):
    stage = data.draw(st.integers(0, num_stages - 1))
    order = passes(num_stages, stage, num_stages * turns, chunks)
    every = {(m, c) for m in range(num_stages * turns) for c in range(chunks)}
    for forward in (True, False):
        assert sorted((p.micro, p.chunk) for p in order if p.forward == forward) == sorted(every)
    seen = set()
    for each in order:
        if each.forward:
            seen.add(each[1:])
        assert each[1:] in seen  # backward comes after forward


@given(
    num_stages=st.integers(1, 5),
    turns=st.integers(1, 3),
    chunks=st.integers(1, 3),
    data=st.data(),
)
def test_overlapped_passes_are_of_different_micro_batches_or_chunks(
    num_stages, turns, chunks, data
):
    stage = data.draw(st.integers(0, num_stages - 1))
    groups = overlapped_passes(num_stages, stage, num_stages * turns, chunks)
    every = passes(num_stages, stage, num_stages * turns, chunks)
    assert sorted(each for group in groups for each in group) == sorted(every)
    for forward, backward in (group for group in groups if len(group) == 2):
        assert forward.forward
        assert not backward.forward
        assert forward[1:] != backward[1:]


@given(half=st.integers(1, 5), more=st.integers(0, 4), data=st.data())
def test_dualpipe_passes_every_micro_batch_up_or_down(half, more, data):
    stage, num_micro = data.draw(st.integers(0, 2 * half - 1)), 4 * half + 2 * more
    order = [each for group in dual_passes(2 * half, stage, num_micro) for each in group]
    every = [(micro, chunk) for micro in range(num_micro // 2) for chunk in (0, 1)]
    for forward in (True, False):
        found = [p[1:] for p in order if p.forward == forward and p.part != "weight"]
        assert sorted(found) == every
    late = {kind: [p[1:] for p in order if p.part == kind] for kind in ("input", "weight")}
    assert late["input"] == late["weight"]  # in the order in which they were put off
    place = {(p.part, *p[1:]): number for number, p in enumerate(order)}
    for micro, chunk in every:
        late_one = place.get(("input", micro, chunk), -1)
        back = place.get(("backward", micro, chunk), late_one)
        assert place["forward", micro, chunk] < back
        assert back <= place.get(("weight", micro, chunk), back)


def dual_seconds(num_stages, num_micro, seconds):
    """Run DualPipe without communication; return when it ends and how long each stage computes."""
    orders = [dual_passes(num_stages, stage, num_micro) for stage in range(num_stages)]
    ended: dict[tuple[object, ...], float] = {}
    clock, busy = [0.0] * num_stages, [0.0] * num_stages
    while any(orders):
        before = sum(map(len, orders))
        for stage, order in enumerate(orders):
            needed = [
                (each.forward, stage + (1 if each.forward == bool(each.chunk) else -1), *each[1:])
                for each in (order[0] if order else ())
                if each.part != "weight"
            ]
            needed = [each for each in needed if 0 <= each[1] < num_stages]
            if not order or any(each not in ended for each in needed):
                continue
            group = order.pop(0)
            takes = seconds["pair" if len(group) > 1 else group[0].part]
            clock[stage] = max(clock[stage], *(ended[each] for each in needed), 0.0) + takes
            busy[stage] += takes
            for each in group:
                key = (each.forward, stage, *each[1:])
                if each.part != "weight":
                    ended[key] = clock[stage]
        assert sum(map(len, orders)) < before, "stages wait for each other"
    return max(clock), busy


@pytest.mark.parametrize("num_stages", [2, 4, 6, 8])
@pytest.mark.parametrize("pair", [3.0, 2.5])
def test_dualpipe_idles_as_long_as_published(num_stages, pair):
    """(PP/2-1)(F&B+B-3W), table 2 of arXiv 2412.19437, where F = W and B = 2 W."""
    takes = {"forward": 1.0, "input": 1.0, "weight": 1.0, "backward": 2.0, "pair": pair}
    for num_micro in (2 * num_stages, 4 * num_stages):
        end, busy = dual_seconds(num_stages, num_micro, takes)
        published = (num_stages / 2 - 1) * (pair + 2.0 - 3.0)
        # outer stages have fewer pairs, which saves less of what they compute
        assert max(end - each for each in busy) == pytest.approx(published)
        assert pair < 3.0 or [end - each for each in busy] == [published] * num_stages


def test_dualpipe_holds_every_layer_twice_and_a_micro_batch_more_than_stages():
    given = {"pp": "4", "layers": "8", "batch": "64", "micro_batch": "1", "zero": "1"}
    model = job_of("llama-8b", 8, {**given, "schedule": "dualpipe"})
    plain = job_of("llama-8b", 8, given)
    for dual, single, back in zip(
        model.memories, plain.memories, reversed(plain.memories), strict=True
    ):
        assert dual.weights == single.weights + back.weights
    three, two = (plain.memories[stage].activations for stage in (1, 2))  # micro batches
    assert model.memories[1].activations == two + 3 * (three - two)
    with pytest.raises(UsageError, match="expected both even, and 8 micro batches or more"):
        job_of("llama-8b", 8, {**given, "schedule": "dualpipe", "batch": "8"}).graph()


def test_an_interleaved_pipeline_ends_sooner():
    machine = platform("h100-8", num_ranks=4)
    given = {"pp": "4", "batch": "8", "hidden": "4096", "heads": "32", "ffn": "16384"}
    plain, turned = (generate("gpt2", 4, {**given, "interleave": str(n)}) for n in (1, 3))
    prices = Prices(machine)
    before, after = (
        StepEngine(w, machine, prices, host=NO_HOST).run(pressure=0).seconds
        for w in (plain, turned)
    )
    assert after < 0.9 * before


@pytest.mark.parametrize("name", ["gpt2", "dlrm"])
def test_a_dtype_that_nobody_knows_is_named(name):
    with pytest.raises(UsageError, match="unknown dtype 'fp3'") as error:
        generate(name, 8, {"dtype": "fp3"})
    assert "fp32" in error.value.hint


def test_a_model_without_inputs_is_refused(tmp_path):
    path = tmp_path / "model.toml"
    path.write_text("bottom = []\n[[tables]]\nrows = 5\ndim = 4\n")
    with pytest.raises(UsageError, match="must not be empty"):
        generate(str(path), 8)


@pytest.mark.parametrize(
    ("spec", "text", "message"),
    [
        (":step", "", "names no function"),
        (".broken:step", "", "names no function"),
        ("broken_a:step", "raise RuntimeError('boom')", "cannot be imported: RuntimeError: boom"),
        ("broken_b:step", "def step(:", "cannot be imported: SyntaxError"),
        ("broken_c:step", "from os import nothing", "cannot be imported: ImportError"),
    ],
)
def test_code_that_cannot_be_imported_is_named(tmp_path, monkeypatch, spec, text, message):
    (tmp_path / f"{spec.partition(':')[0].strip('.') or 'x'}.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(UsageError, match=message):
        find_workload(spec, 1)


@pytest.mark.parametrize("settings", [{"math": "fp8"}, {"dtype": "fp8"}, {"dtype": "int8"}])
def test_narrow_products_write_and_send_two_bytes_an_element(settings):
    given = {"batch": "1", "tp": "8", "layers": "1", "mode": "prefill", **settings}
    (step,) = generate("llama-8b", 8, given).steps
    sums = [op for op in step.ops if op.collective]
    for op in sums:
        product = step.ops[op.after[0]].cost or Cost()
        m, n, k = product.shape
        assert product.dtype in ("fp8", "int8")
        assert product.nbytes == m * k + k * n + 2 * m * n
        assert op.collective
        assert op.collective.nbytes == 2 * m * n
    norms = {op.cost.dtype for op in step.ops if op.cost and op.name == "norm"}
    assert (len(sums), norms) == (2, {"bf16"})


def test_a_model_in_fp8_stores_one_byte_a_weight_and_two_a_gradient():
    wide, narrow = (
        generate("llama-8b", 8, {"batch": "8", "dtype": dtype}).memory or Memory()
        for dtype in ("bf16", "fp8")
    )
    assert narrow.weights
    assert narrow.weights * 2 == wide.weights
    assert narrow.gradients == wide.gradients
    assert narrow.activations == wide.activations


def test_gathered_weights_are_as_wide_as_they_are_stored_and_gradients_as_products_write_them():
    settings = {"batch": "8", "layers": "1", "fsdp": "true"}
    moved = {}
    for dtype in ("bf16", "fp8"):
        graph = generate("llama-8b", 8, {**settings, "dtype": dtype})
        moved[dtype] = {op.name: op.collective.nbytes for op in graph.ops() if op.collective}
    assert moved["fp8"]["all_gather"] * 2 == moved["bf16"]["all_gather"]
    assert moved["fp8"]["reduce_scatter"] == moved["bf16"]["reduce_scatter"]


@pytest.mark.parametrize("mode", ["prefill", "decode"])
def test_model_flops_of_a_server_are_those_of_its_step(mode):
    settings = {"layers": "4", "batch": "2", "seq": "256", "mode": mode}
    jobs = [job_of("deepseek-v3", 1, settings | {"mtp": mtp}) for mtp in ("0", "1")]
    assert flops(jobs[0].graph()) == flops(jobs[1].graph())
    assert jobs[0].flops == jobs[1].flops > 0


@pytest.mark.parametrize("window", [0, 32, 128, 200, 256])
@pytest.mark.parametrize("chunked", [False, True])
def test_model_flops_count_the_keys_that_attention_sees(window, chunked):
    given = {"layers": 2, "seq": 256, "batch": 2, "window": window, "chunked": chunked}
    if chunked and window and 256 % window:
        return
    job = job_of("llama-8b", 1, {key: str(value).lower() for key, value in given.items()})
    model = job.model
    assert isinstance(model, Transformer)
    places = [n % window if chunked and window else n for n in range(256)]
    seen = sum(min(place + 1, window or 256) for place in places) / 256
    each = 4.0 * model.heads * model.head_dim * seen * model.layers
    plain = replace(job, model=replace(model, window=0, causal=False))
    whole = 4.0 * model.heads * model.head_dim * 256 * model.layers
    assert plain.flops - job.flops == pytest.approx(3 * 512 * (whole - each), rel=1 / 30)


def test_a_truth_value_is_no_number(tmp_path):
    file = tmp_path / "model.toml"
    file.write_text('model = "gpt2"\nbatch = true\n')
    with pytest.raises(UsageError, match="cannot read batch='True'"):
        generate(str(file), 1)


@pytest.mark.parametrize("key", ["dtype", "math", "expert_math", "kv_dtype", "grad_dtype"])
def test_a_dtype_is_known_by_all_its_names_and_no_other(key):
    by_both = [job_of("gpt2", 1, {key: name}).model for name in ("bfloat16", "bf16")]
    assert by_both[0] == by_both[1]
    with pytest.raises((UsageError, UnknownNameError), match="bf61"):
        job_of("gpt2", 1, {key: "bf61"})
