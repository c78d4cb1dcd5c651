"""Collective estimates for Inductor, checked with torch's own reader of profiles."""

import json

import pytest

from tests.trace.events import all_reduce, kernel, launch, mark, written
from weft.cli import main
from weft.trace import analyze
from weft.trace.inductor_profile import collective_estimates, inductor_profile

GATHER = "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)"


def gather(ts, dur, correlation, nelems, group):
    about = {
        "Collective name": "_allgather_base",
        "In msg nelems": nelems,
        "Out msg nelems": nelems * len(group),
        "dtype": "BFloat16",
        "Group size": len(group),
        "Process Group Name": "1",
        "Process Group Ranks": str(group),
    }
    return kernel(ts, dur, GATHER, 21, correlation, **about)


def job(folder):
    """Two ranks; rank 1 is 60 us late for every all-reduce, which moves for 40 us."""
    for rank, late in enumerate((0.0, 60.0)):
        events = []
        for step in range(3):
            at = 1000.0 * step
            events += [
                mark(step, at, 900.0),
                launch(at + 1, 10 * step),
                launch(at + 2, 10 * step + 1),
            ]
            events.append(all_reduce(at + 100 + late, 100 - late, 10 * step, nelems=4096))
            events.append(gather(at + 400, 25.0, 10 * step + 1, 512, [0, 1]))
        written(folder / f"rank{rank}.json", events, rank=rank)
    return folder


def test_waiting_for_other_ranks_is_left_out(tmp_path):
    found = {each.kind: each for each in collective_estimates(analyze(job(tmp_path)))}
    assert found["all_reduce"].moving == pytest.approx(40e-6)
    assert found["all_reduce"].seconds > 65e-6
    assert (found["all_reduce"].ranks, found["all_reduce"].count) == ((0, 1), 6)
    assert found["all_gather"].nbytes == 2 * 1024
    assert {each.basis for each in found.values()} == {"measured"}


@pytest.mark.torch
def test_torch_looks_up_what_was_written(tmp_path):
    profile = pytest.importorskip("torch._inductor.fx_passes.profile_guided_estimation")
    path = tmp_path / "profile.json"
    path.write_text(inductor_profile(collective_estimates(analyze(job(tmp_path)))))
    data = profile.ProfileData()
    data.load(str(path))
    found, source = data.lookup_collective("all_reduce", (0, 1), 4096, "Float")
    assert (found, source) == (pytest.approx(0.040), "profile")
    gathered, _ = data.lookup_collective("all_gather_into_tensor", (0, 1), 1024, "BFloat16")
    assert gathered == pytest.approx(0.025)
    assert data.lookup_collective("all_reduce", (2, 3), 4096, "Float")  # the same mesh dimension


def test_the_verb_writes_the_profile_and_says_what_was_left_out(tmp_path, capsys):
    path = tmp_path / "profile.json"
    assert main(["export", "inductor", str(job(tmp_path)), "-o", str(path)]) == 0
    text = capsys.readouterr().out
    assert "2 estimates from 12 of 12 recorded collectives" in text
    assert "profile_guided_estimations_profile_path" in text
    assert len(json.loads(path.read_text())["traceEvents"]) == 2


def test_traces_without_collectives_are_refused(tmp_path, capsys):
    written(tmp_path / "a.json", [mark(0, 0.0, 9.0), launch(1, 1), kernel(2, 3, correlation=1)])
    assert main(["export", "inductor", str(tmp_path / "a.json")]) == 2
    assert "no collective with known size" in capsys.readouterr().err
    assert main(["export", "chrome", str(tmp_path / "a.json")]) == 2
