"""Two recorded jobs compared: known differences are found, equal steps do not differ."""

import itertools
import json
import os
from pathlib import Path

import pytest

from tests.trace.events import all_reduce, event, kernel, launch, mark, written
from weft.cli import main
from weft.timeline.step_diff import StepSide, diff_sides
from weft.trace import analyze
from weft.trace.analysis.trace_profile import side_of

DATA = Path(os.environ.get("WEFT_DATA", "../shared/data"))
NOISE = (0.0, 1.5, -1.0, 0.5, -0.5, 1.0)  # microseconds


def recorded(path, *, gemm=200.0, moves=300.0, extra=0, pause=0.0):
    """Write six steps: a product, ``extra`` additions, an all-reduce and an idle ``pause``."""
    events, now, number = [], 0.0, 0
    for step, noise in enumerate(NOISE):
        begin = now
        ops = [("aten::mm", "sgemm_128x64", gemm + noise, [[64, 64], [64, 64]])]
        ops += [("aten::add", "elementwise_kernel", 50.0 + noise, [[64], [64]])] * (1 + extra)
        at = begin + 10
        for name, what, seconds, dims in ops:
            number += 1
            events += [
                event(name, "cpu_op", at - 6, 4.0, 1, **{"Input Dims": dims}),
                launch(at - 5, number),
                kernel(at, seconds, what, correlation=number),
            ]
            at += seconds
        number += 1
        events += [launch(at - 1, number), all_reduce(at, moves - noise, correlation=number)]
        now = at + moves - noise + 40 + pause
        events.append(mark(step, begin, now - begin))
    return written(path, events)


def compared(tmp_path, **changed):
    before = recorded(tmp_path / "before.json")
    after = recorded(tmp_path / "after.json", **changed)
    return diff_sides(*(side_of(analyze(path)) for path in (before, after)))


def test_equal_jobs_do_not_differ(tmp_path):
    found = compared(tmp_path)
    assert not found.causes
    assert not found.step.significant
    assert not any(change.significant for change in found.changes)
    assert found.matched == 1


@pytest.mark.parametrize(
    ("changed", "words", "seconds"),
    [
        ({"gemm": 260.0}, ("matrix products", "1.30 times as long", "60 us more"), 60e-6),
        ({"moves": 200.0}, ("exposed communication", "100 us less", "all_reduce"), -100e-6),
        ({"extra": 2}, ("elementwise", "2 kernels more", "100.2 us more"), 100e-6),
        ({"pause": 80.0}, ("idle device", "80 us more"), 80e-6),
    ],
)
def test_a_known_difference_is_the_first_cause(tmp_path, changed, words, seconds):
    found = compared(tmp_path, **changed)
    assert found.step.significant
    assert found.step.difference == pytest.approx(seconds, rel=0.02)
    assert all(word in found.causes[0] for word in words), found.causes
    assert len(found.causes) == 1


def test_the_verb_compares_all_words_after_against(tmp_path, capsys):
    paths = [
        str(recorded(tmp_path / f"{name}.json", gemm=g)) for name, g in (("a", 200), ("b", 300))
    ]
    assert main(["analyze", paths[0], "--against", paths[1], "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["verb"] == "analyze"
    assert found["causes"]
    assert {part["name"] for part in found["parts"]} >= {"step", "compute", "exposed", "idle"}
    assert main(["analyze", paths[0], "--against", paths[1], "-o", str(tmp_path / "d.html")]) == 0
    shown = capsys.readouterr().out
    assert "longer than" in shown
    assert "matrix products" in (tmp_path / "d.html").read_text()
    assert main(["analyze", paths[0], "--against"]) == 2


@pytest.mark.data
def test_steps_of_one_recorded_job_do_not_differ_significantly():
    side = side_of(analyze(DATA / "hta_traces/recsys_8xA100_rank3.json.gz"))
    every = range(len(side.profiles))
    for chosen in itertools.combinations(every, 2):
        parts = [_some(side, chosen), _some(side, [n for n in every if n not in chosen])]
        found = diff_sides(*parts)
        assert not any(part.significant for part in found.parts)
        assert not any(change.significant for change in found.changes)


@pytest.mark.data
def test_two_devices_differ_in_known_kernels():
    folder = DATA / "tracelens/traces"
    sides = [
        side_of(analyze(folder / f"qwen1.5-0.5b_{on}_single.json.gz")) for on in ("H100", "MI300X")
    ]
    found = diff_sides(*sides)
    assert found.step.before == pytest.approx(47.15e-3, rel=1e-3)
    assert found.step.after == pytest.approx(42.74e-3, rel=1e-3)
    assert found.step.significant is None  # one step a side
    assert found.matched > 0.8
    (attention,) = [c for c in found.changes if c.name.startswith("aten._flash_attention_forward")]
    assert attention.count == (24.0, 24.0)
    assert attention.difference > 1e-3


def _some(side, numbers):
    return StepSide(
        side.label,
        tuple(side.profiles[n] for n in numbers),
        {name: [values[n] for n in numbers] for name, values in side.parts.items()},
        side.idle,
    )
