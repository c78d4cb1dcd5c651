import pytest

from validation import inference
from validation.scale_points import JOBS, point


@pytest.fixture
def few(monkeypatch):
    monkeypatch.setattr(inference, "MODELS_SERVED", (("llama-70b", 8),))
    monkeypatch.setattr(inference, "PROMPTS", (1024,))
    monkeypatch.setattr(inference, "HITS", (0.5, 1.0))
    monkeypatch.setattr(inference, "_overheads", lambda: iter(()))


@pytest.mark.usefixtures("few")
def test_gains_are_listed_with_where_they_are_missed():
    found = {target.name: target for target in inference.targets()}
    served = "llama-70b tp 8, blocks of 4 KiB"
    best = found[f"{served}, b2b: latency"]
    assert best.weft > 1.5
    assert best.note.startswith("not with prompt/hit 1024/0.5 1.3")
    assert not any(target.fitted for target in found.values())
    both = found["published gains (1.5x in latency, 1.9x in throughput) that b2b reaches"]
    assert both.weft == 1.0  # short prompts do not reach 1.9x
    assert both.met is False


def test_a_job_that_grows_exposes_more():
    dlrm = JOBS[-1]
    one, node = point(dlrm, 1), point(dlrm, 8)
    assert one.exposed == 0.0
    assert not one.alone
    assert 0 < node.share < 100
    assert all(node.saved(strategy) > 0 for strategy in node.alone)
    assert node.saved("serial") == 0.0


def test_what_does_not_fit_is_known():
    assert not point(JOBS[0], 1).fits
    assert point(JOBS[-1], 8).fits
