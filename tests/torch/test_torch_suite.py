"""A sample of PyTorch's own distributed tests on weft; ``make test-torch`` runs all of them."""

from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("expecttest", reason="torch.testing needs it")

from tests.torch_suite.__main__ import outcomes_of, unexplained
from tests.torch_suite.differences import DIFFERENCES

pytestmark = [pytest.mark.torch, pytest.mark.multiprocess, pytest.mark.timeout(300)]

# One or two of each kind: collectives, groups, messages, objects, DDP, errors.
SAMPLE = (
    "test_all_gather_coalesced_complex",
    "test_all_gather_object_subgroup",
    "test_all_to_all_single_unequal_split_group",
    "test_barrier_timeout_group",
    "test_batch_isend_irecv_gloo_tags",
    "test_ddp_broadcast_buffer",
    "test_ddp_join_model_equivalence",
    "test_monitored_barrier_gloo_subgroup",
    "test_reduce_scatter_v_none",
    "test_scatter_object_list",
    "test_send_recv_any_source",
    "test_sparse_all_reduce_sum",
)


def test_weft_passes_a_sample_of_torchs_tests():
    found = outcomes_of("weft", 2, list(SAMPLE))
    failed = {name: why for name, (outcome, why) in found.items() if outcome == "failed"}
    assert not failed
    assert sum(outcome == "passed" for outcome, _ in found.values()) >= 8


def test_what_gloo_passes_and_weft_does_not_is_found():
    gloo = {"a": ("passed", ""), "b": ("passed", ""), "c": ("skipped", "no GPU")}
    assert unexplained(gloo, {"a": ("passed", "")}) == {"b": ("missing", "")}
    assert unexplained(gloo, {"a": ("failed", "x"), "b": ("passed", "")}) == {"a": ("failed", "x")}


def test_the_page_lists_every_difference():
    page = Path("docs/torch-suite.md").read_text(encoding="utf-8")
    assert all(f"`{name}`" in page for name in DIFFERENCES)
