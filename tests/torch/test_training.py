"""Trainings lose the same with weft as with Gloo."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

import weft.torch
from tests.torch.ranks import on_ranks
from tests.torch.training_cases import STEPS, TRAININGS, fsdp_in_the_heap, sharded, train_all
from weft.errors import UsageError

pytestmark = [pytest.mark.torch, pytest.mark.multiprocess, pytest.mark.timeout(120)]


@pytest.fixture(
    scope="module",
    params=[pytest.param(2, id="2 ranks"), pytest.param(3, id="3 ranks", marks=pytest.mark.slow)],
)
def trained(request):
    return on_ranks(train_all, request.param)


@pytest.mark.parametrize("name", TRAININGS)
def test_losses_are_those_of_gloo(trained, name):
    for by_weft, by_gloo in (result[name] for result in trained):
        assert by_weft == pytest.approx(by_gloo, rel=1e-6)
        assert by_weft[-1] != by_weft[0]


def test_fsdp_in_the_heap_loses_the_same_to_the_last_bit():
    for plain, in_heap, used, lent in on_ranks(fsdp_in_the_heap, 2):
        assert in_heap == plain
        ((calls, given, refused),) = used
        # Three layers: in a step each is gathered at least once and scattered once.
        assert calls >= STEPS * 3 * 2
        assert given > calls
        assert lent <= 4 * 3  # and what a step gave back the next one takes again
        assert refused == 0


def use_heap_wrongly():
    complaints = []
    for group in (dist.new_group(backend="gloo"), None):
        try:
            net = torch.nn.Linear(2, 2) if group is None else sharded(group)
            weft.torch.use_heap(net)
        except UsageError as error:
            complaints.append(str(error))
    return complaints


def test_the_heap_needs_fsdp2_and_a_weft_group():
    for complaints in on_ranks(use_heap_wrongly, 2):
        assert complaints == [
            "group: expected a weft group (got backend 'gloo').",
            "model: has no FSDP2 module.",
        ]


GUIDE = Path(__file__).parents[2] / "docs" / "training.md"
SCRIPTS = [each for each in GUIDE.read_text().split("```") if "range(10)" in each]


@pytest.mark.parametrize("script", SCRIPTS, ids=["DDP", "FSDP2"])
def test_the_scripts_of_the_guide_train(tmp_path, script):
    path = tmp_path / "train.py"
    path.write_text(script.removeprefix("python"))
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    done = subprocess.run(
        [*command, str(path)], capture_output=True, text=True, timeout=110, check=False
    )
    assert done.returncode == 0, done.stderr
    steps = [float(line.split()[1]) for line in done.stdout.splitlines()]
    assert len(steps) == 10
    assert all(0 < loss < 10 for loss in steps)
