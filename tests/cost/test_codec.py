"""What codecs cost, and how that shows in a simulated broadcast."""

import pytest

from weft.collectives import collective
from weft.cost.codec import codec_rates, is_priced
from weft.hardware import platform
from weft.simulator import simulate

SIZE, PIECE = 16 << 20, 256 << 10


def seconds(algorithm, where, **options):
    made = collective(
        "broadcast", algorithm, num_ranks=4, nbytes=SIZE, piece=PIECE, dtype="float32", **options
    )
    return simulate(made, platform(where)).makespan


def test_a_short_chunk_on_a_gpu_takes_as_long_as_one_that_fills_it():
    rates = codec_rates("pack", platform("a100-8").device)
    assert rates.seconds(1, decodes=False) == rates.seconds(rates.fills, decodes=False)
    assert rates.seconds(2 * rates.fills, decodes=True) > rates.seconds(rates.fills, decodes=True)


def test_a_core_encodes_what_a_network_without_devices_sends():
    assert codec_rates("zfp:8", None).decode > codec_rates("zfp:16", None).decode
    assert codec_rates("int8:64", None) == codec_rates("int8", None)
    assert not is_priced("none")


def test_a_slow_link_gains_the_ratio_and_a_fast_one_loses_to_a_slow_codec():
    slow, fast = "switch(4)@125MB/s,50us", "switch(4)@50GB/s,1us"
    plain = seconds("chain+none", slow)
    assert seconds("chain+int8", slow) == pytest.approx(plain / 3.94, rel=0.05)
    assert seconds("chain+zfp:16", fast) > 5 * seconds("chain+none", fast)


def test_every_hop_pays_point_to_point():
    where = "switch(4)@125MB/s,50us"
    once, hops = (seconds(f"{way}+zfp:16", where) for way in ("chain", "p2p"))
    assert hops > 1.02 * once


def test_the_slowest_stage_of_a_chain_is_its_pace():
    num_pieces = SIZE // PIECE
    rates = codec_rates("zfp:16", None)
    stage = max(rates.seconds(PIECE, decodes=decodes) for decodes in (False, True))
    have = seconds("chain+zfp:16", "switch(4)@50GB/s,1us")
    assert have == pytest.approx(num_pieces * stage, rel=0.1)
