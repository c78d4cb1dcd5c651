"""Triton kernels for symmetric memory run between processes, without a GPU."""

import pytest

from tests.triton_started import started

pytestmark = [pytest.mark.triton, pytest.mark.torch, pytest.mark.multiprocess]
pytest.importorskip("triton")


@pytest.mark.timeout(150)
def test_a_kernel_of_symmetric_memory_sums_the_buffers_of_all_ranks(tmp_path):
    module = "symmetric_memory.triton_ranks_of_symmetric_memory"
    assert started(module, str(tmp_path / "store"), TRITON_INTERPRET="1") == ["equal"]
