"""What a measured server's row says of its benchmark."""

from dataclasses import replace

import pytest

from validation.serving_rows import ServedRow, predicted
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
