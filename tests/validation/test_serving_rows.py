"""What a measured server's row says of its benchmark."""

from dataclasses import replace

import pytest

from validation.serving_rows import ServedRow, _as_launched, predicted
from weft.serving import find_server

ROW = ServedRow(
    "meta-llama/Llama-3.1-8B-Instruct", "vllm", "0.11", "h100_sxm", "bf16",
    *(256, 4, 1), *(1, 1, 1, 1), 1.0, 8192, False, 0.02, 0.006,
)  # fmt: skip


def test_requests_over_the_network_wait_for_admission_also_at_servers_without_it():
    assert find_server("vllm", "0.11").admission == 0.0
    alone, by_network = predicted(ROW), predicted(replace(ROW, by_network=True))
    assert alone is not None
    assert by_network is not None
    newest = find_server("vllm")
    assert by_network[0] >= alone[0] + newest.admission
    assert by_network[1] == pytest.approx(alone[1])


def test_requests_over_the_network_stream_several_tokens_at_a_time_from_tensorrt_llm():
    row = replace(ROW, server="trtllm", version="1.1", tp=8, prompt=32, output=32, concurrency=128)
    alone, by_network = (predicted(replace(row, by_network=net)) for net in (False, True))
    assert alone is not None
    assert by_network is not None
    assert alone[1] > 128 * find_server("trtllm", "1.1").stream
    assert by_network[1] < 0.8 * alone[1]


@pytest.mark.parametrize(
    ("given", "read"),
    [
        (("64", "1", "8", "8", "16"), ("8", "1", "1", "8", "16")),  # tp and ep, as tp once more
        (("1", "64", "8", "8", "2"), ("1", "8", "1", "8", "16")),
        (("4", "4", "1", "16", "2"), ("4", "1", "1", "4", "8")),
        (("8", "1", "1", "8", "16"), ("8", "1", "1", "8", "16")),
        (("1", "8", "1", "8", "16"), ("1", "8", "1", "8", "16")),
        (("8", "1", "8", "1", "16"), ("8", "1", "8", "1", "16")),
    ],
)
def test_products_of_ranks_are_read_as_ranks(given, read):
    keys = ("tp_size", "attention_dp_size", "moe_tp_size", "moe_ep_size", "batch_size")
    names = {"model_path": "m", "backend_version": "1", "silicon_data_source": "db-dump/1"}
    found = _as_launched(names | dict(zip(keys, given, strict=True)))
    assert tuple(found[key] for key in keys) == read
    other = names | {"silicon_data_source": "elsewhere"} | dict(zip(keys, given, strict=True))
    assert _as_launched(other) == other
