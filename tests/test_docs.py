"""The Python of the documents runs as it stands there, given what a page leaves to its reader."""

import os
import re
import shlex
import socket
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from weft.cli import main

pytestmark = pytest.mark.thorough

DOCS = Path(__file__).parents[1] / "docs"
BLOCK = re.compile(r"```python\n(.*?)```", re.DOTALL)
BLOCKS = {
    f"{path.name} {number}": block
    for path in sorted(DOCS.glob("*.md"))
    for number, block in enumerate(BLOCK.findall(path.read_text(encoding="utf-8")), start=1)
}
# What a page leaves to its reader: a model, batches, files. It stands before the block.
GIVEN = {
    "apply.md 1": """
        import torch, weft
        from weft.planner.plan import Plan
        from pathlib import Path

        class Model(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.top = torch.nn.Linear(4, 1)

        plan = Plan("job", "cpu", 1, (), 1.0, 1.0, 1.0, 1.0, fingerprint="a-b")
        Path("plan.json").write_bytes(plan.to_json())
        batches = [torch.ones(2, 4)]

        def train(model, batch):
            model.top(batch).sum().backward()
        """,
    "slow-job.md 1": """
        import torch
        loader = [torch.ones(4)] * 20
        def train_step(batch): return batch.sum()
        """,
}
# Blocks that cannot run alone here, and why.
ELSEWHERE = {
    "engines.md 1": "needs a launcher and its cores",
    "fused.md 1": "needs indices of the reader's tables; tests/torch/test_embedding.py",
    "fused.md 2": "goes on from the first; tests/torch/test_fused_matmul.py",
    "weights.md 1": "needs a sender and a receiver; tests/hosts/test_weights.py",
    "weights.md 2": "needs eight ranks; tests/hosts/test_reshard_tensor.py",
    "hosts.md 3": "shows what several hosts say; tests/hosts",
    "capture.md 1": "a function of the reader's module; tests/capture/test_capture.py",
    "slow-job.md 2": "reads the reader's traces; tests/trace/test_analyze.py",
    "apply.md 2": "needs a calibrated machine; tests/torch/test_apply.py",
    "apply.md 3": "needs GPUs; tests/torch/test_gpu_apply.py",
}


@pytest.mark.torch
@pytest.mark.multiprocess
@pytest.mark.timeout(120)
@pytest.mark.parametrize("name", [name for name in BLOCKS if name not in ELSEWHERE])
def test_the_python_of_a_page_runs(name, tmp_path):
    code = textwrap.dedent(GIVEN.get(name, "")) + BLOCKS[name]
    (tmp_path / "example.py").write_text(code, encoding="utf-8")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    alone = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    done = subprocess.run(
        [sys.executable, "example.py"],
        cwd=tmp_path,
        env=os.environ | alone | {"XDG_CONFIG_HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr


# A block of commands, at most one line of prose, and the output of the first command: its first
# line, and lines behind it that begin with a space. A command goes on behind a backslash.
OUTPUT = re.compile(
    r"```(?:sh)?\nweft ((?:[^\n]+\\\n)*[^\n]+)\n(?:[^`]*\n)?```\n\n"
    r"(?:[^\n`][^\n]*\n\n)?"
    r"```text\n(.+(?:\n .+)*)"
)
SHOWN = [
    pytest.param(command, shown, id=f"{path.name} {command[:40].strip()}")
    for path in sorted(DOCS.glob("*.md"))
    for command, shown in OUTPUT.findall(path.read_text(encoding="utf-8"))
]


@pytest.mark.parametrize(("command", "shown"), SHOWN)
def test_a_command_prints_what_its_guide_shows(command, shown, capfd):
    main(shlex.split(command.replace("\\\n", " "), comments=True))
    out, err = capfd.readouterr()
    assert " ".join((out or err).split()).startswith(" ".join(shown.split()))


def test_guides_show_output():
    assert len(SHOWN) >= 9


@pytest.mark.parametrize("name", BLOCKS)
def test_what_uses_the_backend_imports_it(name):
    block = BLOCKS[name]
    if 'init_process_group("weft")' in block:
        assert "import weft.torch" in block


def test_what_is_said_of_blocks_is_of_blocks_that_are_there():
    assert {*GIVEN, *ELSEWHERE} <= set(BLOCKS)


def test_the_readme_says_what_the_backend_needs():
    readme = (DOCS.parent / "README.md").read_text(encoding="utf-8")
    for line in readme.splitlines():
        if 'init_process_group("weft")' in line:
            assert "import weft.torch" in line
