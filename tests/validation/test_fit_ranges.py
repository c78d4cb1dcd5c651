"""Terms of ranges are fitted to residuals so that they hold four of five of others."""

from dataclasses import replace

import numpy as np
import pytest

from validation.fit_ranges import (
    collective_terms,
    common_share,
    fit_kernels,
    fit_stacks,
    fit_term,
    share_inside,
    table_term,
)
from validation.range_tables import RangeTable
from validation.step_rows import StepRow, range_target
from weft.cost.ranges import range_term


def _table(spread, count=4000, *, shift=0.0, own=0.0, part="", seed=0):
    left = np.random.default_rng(seed).normal(shift, spread, count)
    own_range = np.full(count, own)
    return RangeTable(
        *("elsewhere", "gemm", "drawn", part, False), np.ones(count), left, own_range, own_range
    )


def test_a_term_holds_four_of_five_residuals_that_it_was_not_fitted_to():
    term = fit_term([_table(0.1)])
    assert term == pytest.approx(1.2816 * 0.1, rel=0.05)
    assert share_inside([_table(0.1, seed=1)], term) == pytest.approx(0.8, abs=0.02)


def test_few_tables_have_a_wider_term_and_many_the_same():
    few = [_table(0.1, part=str(n), seed=n) for n in range(2)]
    many = [_table(0.1, 500, part=str(n), seed=n) for n in range(60)]
    assert share_inside(few, table_term(few)) == pytest.approx(0.85, abs=0.01)
    assert share_inside(many, table_term(many)) == pytest.approx(0.8 * 61 / 60, abs=0.01)


def test_bytes_and_overhead_of_collectives_have_the_terms_that_they_were_drawn_with():
    draw = np.random.default_rng(0)
    tables = []
    for n in range(30):
        share = draw.uniform(0, 1, 1000)
        left = draw.normal(0, np.hypot(0.03 * (1 - share), 0.2 * share))
        drawn = _table(0.1, 1000, part=str(n))
        tables.append(replace(drawn, group="collectives", left=left, overhead=share))
    of_bytes, overhead = collective_terms(tables)
    four_of_five = 1.2816 * (1 + 0.04)  # and a little more, for the table that is not there
    assert of_bytes == pytest.approx(0.03 * four_of_five, rel=0.15)
    assert overhead == pytest.approx(0.2 * four_of_five, rel=0.15)


def test_a_range_that_is_wide_enough_needs_no_term():
    assert fit_term([_table(0.1, own=0.2)]) == 0.0


def test_a_term_joins_the_range_of_the_fit_as_squares():
    own = 0.08
    term = fit_term([_table(0.1, own=own)])
    assert np.hypot(own, term) == pytest.approx(1.2816 * 0.1, rel=0.05)


def test_large_tables_count_no_more_than_small_ones():
    few, many = _table(0.3, 200), _table(0.05, 20_000)
    assert share_inside([few, many], fit_term([few, many])) == pytest.approx(0.8, abs=0.01)


def test_what_tables_have_in_common_is_what_their_middles_are_off_by():
    shifted = [_table(0.01, shift=s, seed=n) for n, s in enumerate((-0.1, 0.1, -0.1, 0.1))]
    scattered = [_table(0.1, seed=n) for n in range(4)]
    assert common_share(shifted, fit_term(shifted)) > 0.9
    assert common_share(scattered, fit_term(scattered)) < 0.1


def _steps(stack, errors, *, part="model", fitted=False, title="steps"):
    for error in errors:
        row = StepRow(part, "", np.exp(error), 1.0, 0.8, 1.25, stack)
        yield title, fitted, row


def test_a_stack_that_is_off_has_a_term_and_one_that_is_not_has_none():
    draw = np.random.default_rng(0)
    rows = [
        *_steps("far", draw.normal(0, 0.4, 200), part="a"),
        *_steps("far", draw.normal(0, 0.4, 200), part="b"),
        *_steps("near", draw.normal(0, 0.01, 200), title="others"),
    ]
    terms, checks = fit_stacks(rows)
    terms = terms["stacks"]
    assert terms["near"]["up"] == 0.0
    assert terms["far"]["up"] > 0.3
    far = next(check for check in checks if check.title == "steps")
    assert far.apart == pytest.approx(0.85, abs=0.04)  # each model with the term of the other


def test_steps_that_a_model_was_fitted_to_do_not_narrow_the_range_of_others():
    rows = [
        *_steps("stack", [0.0] * 500, part="shown", fitted=True),
        *_steps("stack", np.linspace(-0.6, 0.6, 50), part="unseen"),
    ]
    assert fit_stacks(rows)[0]["stacks"]["stack"]["up"] > 0.3


def test_few_rows_have_no_limit_and_say_how_uncertain_they_are():
    few = range_target("group", "few", "", [True] * 6, 1.3, fitted=False)
    many = range_target("group", "many", "", [True] * 60, 1.3, fitted=False)
    assert few.met is None
    assert "6 rows: +-16 points" in few.note
    assert many.met is False


@pytest.mark.data
@pytest.mark.slow
@pytest.mark.timeout(600)  # a minute and a half of a core: shapes are left out a fifth at a time
def test_ranges_hold_unseen_kernels_and_collectives(data):
    _, checks = fit_kernels(data)
    families: dict[str, list[float]] = {}
    for check in checks:
        if check.rows >= 20 and not check.fitted:
            families.setdefault(check.title.split()[0], []).append(check.inside)
    assert {"gemm", "norm", "moe", "decode", "NCCL", "all_reduce"} <= set(families)
    for name, shares in families.items():
        assert 0.7 < np.mean(shares) < 0.95, name


def test_a_very_small_table_counts_by_its_rows():
    small, large = _table(0.02, 6), _table(0.1, 4000, seed=1)
    assert share_inside([small, large], 0.05) == pytest.approx(
        (6 * small.inside(0.05).mean() + 20 * large.inside(0.05).mean()) / 26
    )


def test_six_held_out_steps_say_more_than_those_a_stack_was_fitted_to():
    rows = [
        *_steps("stack", [0.0] * 500, part="shown", fitted=True),
        *_steps("stack", np.linspace(-0.6, 0.6, 6), part="unseen"),
    ]
    assert fit_stacks(rows)[0]["stacks"]["stack"]["up"] > 0.3
    few = [row for row in rows if row[1] or row[2].measured > 1]  # three held out: all count
    assert fit_stacks(few)[0]["stacks"]["stack"]["up"] < 0.1


def test_steps_with_experts_have_a_term_of_their_own():
    draw = np.random.default_rng(0)
    dense, experts = draw.normal(0, 0.15, 200), draw.normal(0, 0.5, 200)
    far = [
        (title, fitted, replace(row, experts=1.0))
        for title, fitted, row in _steps("stack", experts, part="experts")
    ]
    alone = fit_stacks(_steps("stack", dense))[0]
    both, checks = fit_stacks([*_steps("stack", dense), *far])
    assert both["stacks"] == alone["stacks"]
    assert not alone["experts"]
    assert both["experts"]["other"]["up"] > 0.5
    assert checks[0].inside == pytest.approx(0.83, abs=0.04)


def test_fitting_the_host_again_to_the_same_steps_gives_the_same_term():
    """A term that is in the ranges of steps already is no part of what is fitted on top."""
    known = range_term("stacks", "megatron").joined(range_term("hosts", "megatron"))
    low, high = known.factors
    errors = np.random.default_rng(0).normal(0, 0.4, 400)
    steps = [StepRow("part", "", np.exp(e), 1.0, low, high, "megatron") for e in errors]
    terms = fit_stacks(("Megatron-LM's tests", False, step) for step in steps)[0]
    fitted = np.hypot(terms["hosts"]["megatron"]["up"], terms["stacks"]["other"]["up"])
    assert np.mean(np.abs(errors) <= fitted) == pytest.approx(0.85, abs=0.01)
