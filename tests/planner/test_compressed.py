"""Ways that send fewer bytes: which codecs may be used, and what they cost."""

from __future__ import annotations

import pytest

from tests.planner.toy import MACHINE, group_of
from weft.cost.codec import codec_rates
from weft.errors import UnknownNameError
from weft.planner.candidates import Candidate
from weft.planner.plan import Alternative, Limits
from weft.planner.prices import Prices
from weft.planner.strategies.compressed import ERRORS, coded, error_of
from weft.step import Collective

MIB = 1 << 20
PRICES = Prices(MACHINE)


def ways(kind="all_gather", nbytes=64 * MIB, dtype="fp32", **limits):
    pair = group_of(what=Collective(kind, nbytes, dtype))
    return list(coded(pair, PRICES, Limits(**limits)))


def codecs(found):
    return [each.strategy.codec for each in found if isinstance(each, Candidate)]


def test_without_a_budget_only_what_loses_nothing_is_done():
    found = ways()
    assert codecs(found) == ["pack"]
    refused = {each.strategy.codec: each.why for each in found if isinstance(each, Alternative)}
    assert set(refused) == set(ERRORS) - {"pack"}
    assert refused["int8"] == "its error of 0.007 is above the budget of 0"


@pytest.mark.parametrize(
    ("budget", "allowed"),
    [
        (0.0, ["pack"]),
        (2e-4, ["pack", "fp16"]),  # the budget itself is within it
        (0.01, ["pack", "fp16", "bf16", "int8"]),
        (1.0, list(ERRORS)),
    ],
)
def test_a_codec_is_allowed_up_to_its_error(budget, allowed):
    assert codecs(ways(error=budget)) == allowed


def test_only_codecs_that_were_asked_for_are_looked_at():
    (found,) = ways(error=1.0, codecs=("int4",))
    assert isinstance(found, Candidate)
    assert (found.strategy.settings, found.memory) == ({"codec": "int4"}, 64 * MIB)


def test_a_codec_that_makes_no_fewer_bytes_is_not_told():
    assert "bf16" not in codecs(ways(dtype="bf16", error=1.0))
    assert "fp8" in codecs(ways(dtype="bf16", error=1.0))


def test_a_way_says_what_it_sends_and_loses():
    pack, fp16 = ways(error=2e-4, codecs=("pack", "fp16"))
    assert pack.why == "pack sends 1.16 times fewer bytes, loses nothing"
    assert fp16.why == "fp16 sends 2.00 times fewer bytes, error 0.0002"


@pytest.mark.parametrize(
    ("kind", "encoded", "decoded"),
    [
        ("all_gather", 32 * MIB, 64 * MIB),  # of two ranks each encodes its part
        ("gather", 32 * MIB, 64 * MIB),
        ("scatter", 64 * MIB, 32 * MIB),
        ("all_to_all", 64 * MIB, 64 * MIB),
        ("broadcast", 64 * MIB, 64 * MIB),
    ],
)
def test_encoding_and_decoding_are_added_to_a_smaller_collective(kind, encoded, decoded):
    (found,) = ways(kind, error=1.0, codecs=("fp16",))
    rates = codec_rates("fp16", MACHINE.require_device())
    coding = rates.seconds(encoded, decodes=False) + rates.seconds(decoded, decodes=True)
    half = PRICES.collective_price(Collective(kind, 32 * MIB, "fp32"), (0, 1))
    assert isinstance(found, Candidate)
    assert found.alone.seconds == pytest.approx(half.seconds + coding)
    assert found.alone.low == pytest.approx(half.low + coding)
    assert found.alone.high == pytest.approx(half.high + coding)


def test_one_byte_is_still_one_byte():
    (found,) = ways(nbytes=1, error=1.0, codecs=("fp16",))
    assert isinstance(found, Candidate)
    assert found.alone.seconds > PRICES.collective(Collective("all_gather", 1, "fp32"), (0, 1))


@pytest.mark.parametrize(
    ("kind", "dtype", "why"),
    [
        ("all_reduce", "fp32", "sums need values: each hop would decode and encode again"),
        ("reduce_scatter", "fp32", "sums need values: each hop would decode and encode again"),
        ("all_gather", "int64", "no codec is for int64"),
    ],
)
def test_what_cannot_be_encoded_is_said_once(kind, dtype, why):
    (found,) = ways(kind, dtype=dtype, error=1.0)
    assert (found.strategy.name, found.why) == ("compressed", why)


def test_the_error_of_a_codec_is_that_of_its_kind():
    assert error_of("int8:64") == error_of("int8") == 7e-3
    with pytest.raises(UnknownNameError, match="error of codec 'zip'"):
        error_of("zip")
