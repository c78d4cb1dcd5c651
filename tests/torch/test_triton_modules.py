"""Modules on GPUs: their kernels interpreted on CPU ranks."""

import pytest

from tests.triton_started import started

pytestmark = [pytest.mark.triton, pytest.mark.torch]
pytest.importorskip("torch")
pytest.importorskip("triton")


@pytest.mark.multiprocess
@pytest.mark.timeout(150)
def test_modules_give_what_torch_gives_with_tensors_of_other_ranks(tmp_path):
    assert started("torch.triton_modules", str(tmp_path), TRITON_INTERPRET="1") == ["equal"]
