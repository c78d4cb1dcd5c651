"""What an embedding over ranks must give: each check asserts by value, on every rank."""

import traceback
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

import weft
import weft.torch
from weft.errors import DisagreeError, UsageError
from weft.fused import EmbeddingBatch, column_wise, embedding_all_to_all, row_wise, table_wise
from weft.fused.table_sharding import Placements
from weft.timeline import Timeline
from weft.torch import EmbeddingAllToAll
from weft.torch.apply.module_swaps import ModuleSwap

CHECKS: dict[str, Callable[[], None]] = {}
TABLES = {"a": (70, 8), "b": (33, 20), "c": (50, 64), "d": (9, 3), "e": (40, 128)}


def check(function: Callable[[], None]) -> Callable[[], None]:
    CHECKS[function.__name__] = function
    return function


def run_checks(
    names: list[str], checks: Mapping[str, Callable[[], None]] | None = None
) -> dict[str, str]:
    """Run checks; return what each of them found wrong."""
    found = {}
    for name in names:
        try:
            (checks or CHECKS)[name]()
            found[name] = ""
        except Exception:  # noqa: BLE001 - the test shows it
            found[name] = traceback.format_exc()
    return found


def values(dtype: torch.dtype = torch.float32) -> dict[str, Tensor]:
    drawn = torch.Generator().manual_seed(3)
    return {n: torch.randn(s, generator=drawn).to(dtype) for n, s in TABLES.items()}


def jagged(samples: int, names: tuple[str, ...], seed: int = 5) -> dict[str, tuple[Tensor, Tensor]]:
    """Draw bags of the whole batch, some of them empty: the same on every rank."""
    found = {}
    for name in TABLES:
        drawn = torch.Generator().manual_seed(seed + ord(name))
        lengths = torch.randint(0, 7, (samples,), generator=drawn)
        offsets = torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)])
        total = int(offsets[-1])
        found[name] = torch.randint(0, TABLES[name][0], (total,), generator=drawn), offsets
    return {name: found[name] for name in names}


def mine(samples: int) -> slice:
    """Return the samples of this rank, the first ranks having one more where they do not share."""
    parts = torch.arange(samples).tensor_split(dist.get_world_size())
    part = parts[dist.get_rank()]
    start = sum(len(each) for each in parts[: dist.get_rank()])
    return slice(start, start + len(part))


def expected(
    tables: dict[str, Tensor],
    bags: dict[str, tuple[Tensor, Tensor]],
    mode: str = "sum",
    weights: dict[str, Tensor] | None = None,
) -> Tensor:
    """Pool everything with torch, all tables side by side."""
    pooled = [
        nn.functional.embedding_bag(
            indices,
            tables[name],
            offsets,
            mode=mode,
            include_last_offset=True,
            per_sample_weights=None if weights is None else weights[name],
        )
        for name, (indices, offsets) in bags.items()
    ]
    return torch.cat(pooled, 1)


def looked_up(
    bag: EmbeddingAllToAll, bags: dict[str, tuple[Tensor, Tensor]], **more: Tensor
) -> Tensor:
    given = [bags[name] for name in bag.table_names]
    rows: Tensor = bag([i for i, _ in given], [o for _, o in given], **more)
    return rows


PLANS: dict[str, Placements] = {
    "table-wise": "table-wise",
    "column-wise": "column-wise",
    "row-wise": "row-wise",
    "mixed": {
        "a": table_wise(1),
        "b": column_wise(),
        "c": row_wise(),
        "d": row_wise(1, 0),
        "e": table_wise(0),
    },
}


@check
def sums_equal_those_of_torch_to_the_last_bit() -> None:
    for plan in ("table-wise", "column-wise"):
        bag = EmbeddingAllToAll(values(), sharding=plan)
        for samples in (64, 7, 1):
            bags = jagged(samples, tuple(TABLES))
            want = expected(values(), bags)[mine(samples)]
            assert torch.equal(looked_up(bag, bags), want), (plan, samples)


@check
def any_sharding_gives_the_sums_of_torch() -> None:
    for plan in PLANS.values():
        for mode in ("sum", "mean"):
            bag = EmbeddingAllToAll(values(), sharding=plan, pooling=mode)
            bags = jagged(37, tuple(TABLES))
            want = expected(values(), bags, mode)[mine(37)]
            assert torch.allclose(looked_up(bag, bags), want, rtol=1e-6, atol=1e-6), (plan, mode)


@check
def narrow_tables_are_summed_in_float32() -> None:
    for dtype in (torch.bfloat16, torch.float16):
        bag = EmbeddingAllToAll(values(dtype), sharding="table-wise")
        bags = jagged(20, tuple(TABLES))
        wide = {name: table.float() for name, table in values(dtype).items()}
        assert torch.equal(looked_up(bag, bags), expected(wide, bags)[mine(20)])


@check
def quantised_rows_are_read() -> None:
    rows = {name: weft.torch.quantize_rows(table) for name, table in values().items()}
    bag = EmbeddingAllToAll(rows, sharding="table-wise")
    bags = jagged(20, tuple(TABLES))
    want = expected(values(), bags)[mine(20)]
    assert torch.allclose(looked_up(bag, bags), want, atol=0.15)
    prepack = torch.ops.quantized.embedding_bag_byte_prepack(values()["a"])
    assert prepack.shape == rows["a"].shape


@check
def weights_of_samples_count() -> None:
    for plan in PLANS.values():
        bag = EmbeddingAllToAll(values(), sharding=plan)
        bags = jagged(24, tuple(TABLES))
        weights = {n: torch.linspace(-1, 2, i.numel()) for n, (i, _) in bags.items()}
        want = expected(values(), bags, weights=weights)[mine(24)]
        given = torch.cat([weights[name] for name in bag.table_names])
        have = looked_up(bag, bags, per_sample_weights=given)
        assert torch.allclose(have, want, rtol=1e-6, atol=1e-6)


@check
def indices_may_have_four_bytes_and_no_offsets() -> None:
    bag = EmbeddingAllToAll(values(), sharding="table-wise")
    drawn = torch.Generator().manual_seed(1)
    whole = {n: torch.randint(0, s[0], (12, 5), generator=drawn) for n, s in TABLES.items()}
    offsets = torch.arange(0, 61, 5)
    want = expected(values(), {n: (i.reshape(-1), offsets) for n, i in whole.items()})[mine(12)]
    assert torch.equal(bag([whole[name].int() for name in bag.table_names]), want)
    assert torch.equal(bag(torch.stack([whole[name] for name in bag.table_names])), want)


@check
def ranks_may_pass_their_own_samples() -> None:
    for plan in PLANS.values():
        bag = EmbeddingAllToAll(values(), sharding=plan, inputs="samples")
        samples = 5 * dist.get_world_size()
        bags = jagged(samples, tuple(TABLES))
        own = mine(samples)
        given = []
        for indices, offsets in bags.values():
            borders = offsets[own.start : own.stop + 1]
            given.append((indices[borders[0] : borders[-1]], borders - borders[0]))
        have = bag([i for i, _ in given], [o for _, o in given])
        assert torch.allclose(have, expected(values(), bags)[own], rtol=1e-6, atol=1e-6)


@check
def slices_come_one_after_another() -> None:
    bag = EmbeddingAllToAll(values(), sharding=PLANS["mixed"], slices=3)
    bags = jagged(40, tuple(TABLES))
    given = [bags[name] for name in bag.table_names]
    parts = list(bag.stream([i for i, _ in given], [o for _, o in given]))
    assert [part.first for part in parts] == sorted(part.first for part in parts)
    have = torch.cat([part.rows for part in parts])
    want = expected(values(), bags)[mine(40)]
    assert torch.allclose(have, want, rtol=1e-6, atol=1e-6)
    assert torch.equal(have, looked_up(bag, bags))


def order(timeline: Timeline) -> list[tuple[int, str, int, int]]:
    """Return the commands of every rank as they follow each other."""
    spans = sorted(timeline.spans(), key=lambda s: (s.rank, s.queue, s.start, s.end, s.id))
    return [(span.rank, span.queue, span.lane, span.id) for span in spans]


@check
def run_and_simulate_know_the_same_commands() -> None:
    bag = EmbeddingAllToAll(values(), sharding=PLANS["mixed"])
    bags = jagged(40, tuple(TABLES))
    given = [bags[name] for name in bag.table_names]
    if "hosts" in weft.torch.paths():
        refused(lambda: bag.timeline([i for i, _ in given], [o for _, o in given]), "several hosts")
        return
    measured = bag.timeline([i for i, _ in given], [o for _, o in given])
    schedule = embedding_all_to_all(EmbeddingBatch(bag.sharding, 40))
    predicted = weft.simulate(schedule, weft.platform("mi300x-8"), collapse=False)
    assert order(measured) == order(predicted)
    assert measured.makespan > 0


@check
def an_empty_batch_gives_no_rows() -> None:
    bag = EmbeddingAllToAll(values(), sharding="table-wise")
    have = looked_up(bag, jagged(0, tuple(TABLES)))
    assert have.shape == (0, sum(dim for _, dim in TABLES.values()))
    have.sum().backward()


@check
def a_rank_without_a_table_gets_its_rows() -> None:
    bag = EmbeddingAllToAll(values(), sharding=dict.fromkeys(TABLES, table_wise(0)))
    bags = jagged(10, tuple(TABLES))
    have = bag([], []) if dist.get_rank() else looked_up(bag, bags)
    assert torch.equal(have, expected(values(), bags)[mine(10)])
    have.sum().backward()


def grad_of(tensor: Tensor) -> Tensor:
    assert tensor.grad is not None
    return tensor.grad


def torch_gradients(samples: int, mode: str) -> tuple[dict[str, Tensor], Tensor]:
    tables = {name: table.requires_grad_() for name, table in values().items()}
    rows = expected(tables, jagged(samples, tuple(TABLES)), mode)
    scale = torch.linspace(-1, 1, rows.numel()).view_as(rows)
    (rows * scale).sum().backward()
    return {name: grad_of(table) for name, table in tables.items()}, scale


def held(bag: EmbeddingAllToAll, name: str, whole: Tensor) -> Tensor:
    """Cut what this rank holds of a table out of the whole."""
    number = list(TABLES).index(name)
    (found,) = [s for s in bag.sharding.of(dist.get_rank()) if s.table == number]
    return whole[slice(*found.rows), slice(*found.columns)]


def backward(bag: EmbeddingAllToAll, samples: int, scale: Tensor) -> None:
    rows = looked_up(bag, jagged(samples, tuple(TABLES)))
    (rows * scale[mine(samples)]).sum().backward()


@check
def gradients_equal_those_of_torch() -> None:
    for plan in PLANS.values():
        for mode in ("sum", "mean"):
            want, scale = torch_gradients(29, mode)
            for sparse in (False, True):
                bag = EmbeddingAllToAll(values(), sharding=plan, pooling=mode, sparse=sparse)
                backward(bag, 29, scale)
                for name, weight in bag.weights.items():
                    have = weight.grad.to_dense()
                    assert weight.grad.is_sparse == sparse
                    assert torch.allclose(have, held(bag, name, want[name]), rtol=1e-5, atol=1e-5)


@check
def steps_in_the_backward_pass_are_those_of_torch() -> None:
    want, scale = torch_gradients(29, "sum")
    for plan in PLANS.values():
        bag = EmbeddingAllToAll(values(), sharding=plan, optimizer=weft.torch.SGD(lr=0.1))
        again = EmbeddingAllToAll(values(), sharding=plan, optimizer=weft.torch.SGD(lr=0.1))
        backward(bag, 29, scale)
        backward(again, 29, scale)
        for name, weight in bag.weights.items():
            stepped = held(bag, name, values()[name] - 0.1 * want[name])
            assert torch.allclose(weight, stepped, rtol=1e-5, atol=1e-5)
            assert torch.equal(weight, again.weights[name])


@check
def adagrad_keeps_one_sum_a_row() -> None:
    want, scale = torch_gradients(29, "sum")
    bag = EmbeddingAllToAll(
        values(), sharding="table-wise", optimizer=weft.torch.RowwiseAdagrad(lr=0.1, eps=1e-6)
    )
    state = {name: torch.zeros(rows) for name, (rows, _) in TABLES.items()}
    tables = values()
    for name, table in tables.items():
        state[name] += want[name].square().mean(1)
        table.sub_(0.1 / (state[name].sqrt() + 1e-6).unsqueeze(1) * want[name])
    backward(bag, 29, scale)
    for name, weight in bag.weights.items():
        assert torch.allclose(weight, tables[name], rtol=1e-5, atol=1e-5)
    kept = bag.state_dict()
    assert all(f"adagrad_{name}" in kept and f"weights.{name}" in kept for name in bag.weights)


@check
def a_state_dict_brings_a_module_back() -> None:
    bag = EmbeddingAllToAll(values(), sharding=PLANS["mixed"])
    other = EmbeddingAllToAll(TABLES, sharding=PLANS["mixed"])
    bags = jagged(8, tuple(TABLES))
    assert not torch.equal(looked_up(bag, bags), looked_up(other, bags))
    other.load_state_dict(bag.state_dict())
    assert torch.equal(looked_up(bag, bags), looked_up(other, bags))


@check
def what_is_drawn_does_not_depend_on_the_sharding() -> None:
    torch.manual_seed(7)
    bags = jagged(8, tuple(TABLES))
    rows = [looked_up(EmbeddingAllToAll(TABLES, sharding=p), bags) for p in PLANS.values()]
    assert all(torch.allclose(rows[0], each, rtol=1e-6, atol=1e-6) for each in rows)


@check
def weights_of_samples_get_gradients() -> None:
    bags = jagged(16, tuple(TABLES))
    whole = {n: torch.linspace(-1, 2, i.numel()).requires_grad_() for n, (i, _) in bags.items()}
    rows = expected(values(), bags, weights=whole)
    scale = torch.linspace(-1, 1, rows.numel()).view_as(rows)
    (rows * scale).sum().backward()
    bag = EmbeddingAllToAll(values(), sharding="table-wise")
    given = torch.cat([whole[name].detach() for name in bag.table_names]).requires_grad_()
    have = looked_up(bag, bags, per_sample_weights=given)
    (have * scale[mine(16)]).sum().backward()
    want = torch.cat([grad_of(whole[name]) for name in bag.table_names])
    assert torch.allclose(grad_of(given), want, rtol=1e-5, atol=1e-5)


@check
def offsets_may_lack_the_end_also_where_last_bags_are_empty() -> None:
    bags = jagged(12, tuple(TABLES))
    name = next(iter(TABLES))
    indices, borders = bags[name]
    bags[name] = indices[: borders[-2]], torch.cat([borders[:-1], borders[-2:-1]])
    bag = EmbeddingAllToAll(values(), sharding="row-wise")
    have = bag([bags[n][0] for n in bag.table_names], [bags[n][1][:-1] for n in bag.table_names])
    assert torch.allclose(have, expected(values(), bags)[mine(12)], rtol=1e-6, atol=1e-6)


def plain_and_fused(rule: Any = None) -> list[Any]:
    """One table, so that some ranks hold none."""
    plain = weft.torch.EmbeddingBags({"a": values()["a"]}, optimizer=rule)
    return [plain, plain.fused()]


def train(bag: Any, step: int) -> Tensor:
    """Return the rows of this rank's samples, after a step that changed the table."""
    size = 4 * dist.get_world_size()
    indices, borders = jagged(size, ("a",), seed=step)["a"]
    holds = bool(bag.sharding.of(dist.get_rank()))
    rows: Tensor = bag([indices] if holds else [], [borders] if holds else [])
    rows.square().sum().backward()
    return rows.detach()


@check
def plain_bags_reach_ranks_without_a_table() -> None:
    plain, fused = plain_and_fused(weft.torch.SGD(0.1))
    for step in range(3):
        assert torch.allclose(train(plain, step), train(fused, step), rtol=1e-5, atol=1e-5)


@check
def sums_of_adagrad_go_along_from_plain_to_fused_and_back() -> None:
    want, _ = plain_and_fused(weft.torch.RowwiseAdagrad(0.1))
    plain, _ = plain_and_fused(weft.torch.RowwiseAdagrad(0.1))
    parent = torch.nn.Sequential(plain)
    train(plain, 0)
    swap = ModuleSwap(parent, "0", plain, plain.fused(), is_fused=False)
    for step, fused in ((1, True), (2, False), (3, True)):
        swap.put(fused=fused)
        train(parent[0], step)
    swap.put(fused=False)
    rows = [train(want, step) for step in range(5)][-1]
    assert torch.allclose(rows, train(plain, 4), rtol=1e-4, atol=1e-4)


@check
def any_optimizer_of_torch_trains_it() -> None:
    bag = EmbeddingAllToAll(values(), sharding="row-wise", sparse=True)
    optimizer = torch.optim.SparseAdam(list(bag.parameters()), lr=0.1)
    losses = []
    for _ in range(4):
        optimizer.zero_grad()
        loss = looked_up(bag, jagged(16, tuple(TABLES))).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    assert losses == sorted(losses, reverse=True)


@check
def what_cannot_be_is_refused_before_anything_moves() -> None:
    for wrong, text in (
        (lambda: EmbeddingAllToAll({"a": (3, 4)}, sharding={}), "1 of 1"),
        (lambda: EmbeddingAllToAll({"a": (3, 4)}, pooling="max"), "(got 'max')"),
        (lambda: EmbeddingAllToAll({"a": (3, 4)}, inputs="rows"), "(got 'rows')"),
        (lambda: EmbeddingAllToAll({"a.b": (3, 4)}), "'a.b'"),
        (lambda: EmbeddingAllToAll({"a": torch.zeros(3, dtype=torch.int64)}), "int64"),
        (
            lambda: EmbeddingAllToAll({"a": torch.zeros(3, 4), "b": torch.zeros(3, 4).half()}),
            "'a' is torch.float32, 'b' is torch.float16",
        ),
        (
            lambda: EmbeddingAllToAll(
                {"a": weft.torch.quantize_rows(torch.rand(3, 4))}, optimizer=weft.torch.SGD(0.1)
            ),
            "optimizer: quantized",
        ),
        (
            lambda: EmbeddingAllToAll(
                {"a": weft.torch.quantize_rows(torch.rand(3, 4))}, sharding="column-wise"
            ),
            "sharding: the rows of quantized table 'a'",
        ),
    ):
        refused(wrong, text)


def refused(act: Callable[[], object], text: str) -> None:
    try:
        act()
    except UsageError as error:
        assert text in str(error), error  # noqa: PT017 - no test of pytest
    else:
        raise AssertionError(f"nothing was wrong: {text}")


@check
def bags_that_do_not_fit_are_refused() -> None:
    bag = EmbeddingAllToAll({"a": (3, 4)}, sharding="column-wise")
    flat, borders = torch.zeros(4, dtype=torch.int64), torch.tensor([0, 2, 4])
    refused(lambda: bag(flat), "offsets: missing")
    refused(lambda: bag([flat, flat], [borders, borders]), "each of 1 tables (got 2)")
    refused(lambda: bag(flat.float(), borders), "torch.float32")
    refused(lambda: bag(flat, borders, torch.ones(3)), "(got 3 of torch.float32)")
    refused(lambda: bag([flat], [borders, borders]), "expected 1 tensors as of indices (got 2)")
    own = EmbeddingAllToAll({"a": (3, 4)}, sharding="column-wise", inputs="samples")
    refused(
        lambda: own(flat, borders, torch.ones(4, requires_grad=True)), "gradients are not supported"
    )
    two = EmbeddingAllToAll({"a": (3, 4), "b": (3, 4)}, sharding="column-wise")
    refused(lambda: two(flat, borders[:2]), "(got 2)")
    refused(lambda: two([flat, flat], [borders, borders[1:]]), "differ (1, 2)")
    mean = EmbeddingAllToAll({"a": (3, 4)}, sharding="column-wise", pooling="mean")
    refused(lambda: mean(flat, borders, torch.ones(4)), "pooling='sum'")


@check
def ranks_that_pass_their_own_samples_pass_equally_many() -> None:
    bag = EmbeddingAllToAll({"a": (3, 4)}, sharding="column-wise", inputs="samples")
    own = torch.zeros(1, 1 + dist.get_rank(), 2, dtype=torch.int64)
    try:
        bag(own)
    except DisagreeError as error:
        assert "samples" in str(error)  # noqa: PT017
    else:
        raise AssertionError("they differ")
