"""Additions as CONTRIBUTING.md describes them: the files they touch, and that weft knows them then.

Each is made in a copy of the package, by one new file, one line of a table, or both. The copy then
answers questions of users about what was added.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import pytest

import weft
import weft._core

pytestmark = pytest.mark.thorough

PACKAGE = Path(weft.__file__).parent
# The editable install finds modules before sys.path does.
START = (
    "import sys; sys.meta_path[:] = [f for f in sys.meta_path if 'ScikitBuild' not in str(type(f))]"
)


@dataclass(frozen=True)
class Addition:
    """What a contributor writes: new files, lines after others, and a question with its answer."""

    line: tuple[str, str, str] = ("", "", "")  # a file, text in it, what is put after that text
    new: dict[str, str] = field(default_factory=dict)
    also: tuple[str, str, str] = ("", "", "")  # an import in the file of ``line``
    asks: str = ""
    answer: str = ""


CLI = "from weft.cli import main; sys.exit(main({!r}.split()))"
RING = "import weft; print(weft.collective('all_gather', 'twice', num_ranks=4, nbytes=64).name)"
MODEL = CLI.format("predict tiny-gpt --on h100-8")
DEVICE = CLI.format("predict gpt2 --on h900-8")
STRATEGY = CLI.format("plan llama-8b --on mi300x-8 --set fsdp=true --set layers=2 --json")
FORMAT = CLI.format("analyze spans.json --json")
CODEC = (
    "import numpy as np; from weft.compress import codec_of, is_lossless\n"
    "from weft.compress.codec_registry import encoded\n"
    "codec, x = codec_of('zlib', 'float32'), np.zeros(1000, np.float32)\n"
    "frame, back = encoded(codec, x), np.ones(4000, np.uint8); codec.decode(frame, back)\n"
    "print(is_lossless('zlib'), len(frame) < 100, not back.any())"
)
ADDITIONS = {
    "an algorithm of a collective": Addition(
        line=("collectives/catalogue.py", '        "ring": ring.all_gather,\n',
              '        "twice": twice.all_gather,\n'),
        also=("collectives/catalogue.py", "    tree,\n", "    twice,\n"),
        new={"collectives/twice.py": (
            "from weft.collectives.ring import all_gather as ring_all_gather\n"
            "from dataclasses import replace\n"
            "def all_gather(num_ranks, nbytes):\n"
            "    return replace(ring_all_gather(num_ranks, nbytes), name='twice all_gather')\n"
        )},
        asks=RING, answer="twice all_gather",
    ),
    "a model": Addition(
        line=("models/zoo.py", "ZOO: dict[str, NamedModel] = {\n",
              '    "tiny-gpt": NamedModel(replace(_GPT2, layers=6), "a test"),\n'),
        asks=MODEL, answer="tiny-gpt on 8 ranks",
    ),
    "a device": Addition(
        new={
            "hardware/catalogue/devices/h900.toml":
                'extends = "h100"\nname = "h900"\ntitle = "H900"\n',
            "hardware/catalogue/nodes/h900-8.toml":
                (PACKAGE / "hardware/catalogue/nodes/h800-8.toml").read_text()
                .replace("h800", "h900"),
        },
        asks=DEVICE, answer="ranks of h900-8",
    ),
    "a strategy": Addition(
        line=("schedule/strategy.py", '    StrategyKind("concurrent", "concurrent"),\n',
              '    StrategyKind("early", "early", first=True),\n'),
        new={"planner/strategies/early.py": (
            PACKAGE / "planner/strategies/priority.py"
        ).read_text().replace('Strategy("priority"', 'Strategy("early"')},
        asks=STRATEGY, answer='"early"',
    ),
    "a trace format": Addition(
        line=("trace/formats/reading.py", '    "entries": JsonFormat(read_flight_recorder),\n',
              '    "spans": JsonFormat(read_spans),\n'),
        also=("trace/formats/reading.py", "from weft.trace.formats.rocprof import read_rocprof\n",
              "from weft.trace.formats.spans import read_spans\n"),
        new={"trace/formats/spans.py": (
            "import json\n"
            "from weft.trace.trace import EventKind, TraceEvent, trace_of_events\n"
            "def read_spans(path):\n"
            "    rows = json.loads(path.read_text())['spans']\n"
            "    events = [TraceEvent(EventKind.KERNEL, n, a, b, stream=7) for n, a, b in rows]\n"
            "    return trace_of_events(events, path=str(path), format='spans')\n"
        )},
        asks=FORMAT, answer='"gemm"' ,
    ),
    "a codec": Addition(
        line=("compress/codec_registry.py", '    "zfp": CodecKind(Zfp, bits=float),\n',
              '    "zlib": CodecKind(Zlib, is_lossless=True),\n'),
        also=("compress/codec_registry.py", "from weft.compress.zfp import Zfp\n",
              "from weft.compress.zlib_codec import Zlib\n"),
        new={"compress/zlib_codec.py": (
            "import zlib\nimport numpy as np\n"
            "from weft.compress.frame import Framed\n"
            "class Zlib:\n"
            "    def __init__(self, name, dtype):\n"
            "        self.name, self.dtype = 'zlib', dtype\n"
            "        self._framed = Framed('zlib', 40, dtype)\n"
            "        self.room = self._framed.room\n"
            "    def encode(self, chunk, out):\n"
            "        return self._framed.write(chunk, zlib.compress(chunk), out)\n"
            "    def decode(self, frame, chunk):\n"
            "        payload = self._framed.read(frame, chunk)\n"
            "        if payload is not None:\n"
            "            chunk[:] = np.frombuffer(zlib.decompress(payload), np.uint8)\n"
        )},
        asks=CODEC, answer="True True True",
    ),
}  # fmt: skip


@pytest.fixture
def copy(tmp_path):
    folder = tmp_path / "weft"
    shutil.copytree(PACKAGE, folder)  # with compiled files, which the times of sources keep valid
    core = Path(weft._core.__file__)
    if not (folder / core.name).exists():
        (folder / core.name).symlink_to(core)
    return folder


def ask(folder: Path, program: str) -> str | None:
    found = subprocess.run(
        [sys.executable, "-c", f"{START}\n{program}"],
        cwd=folder.parent,
        env={**os.environ, "PYTHONPATH": str(folder.parent)},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    return found.stdout if found.returncode == 0 else None


@pytest.mark.parametrize("what", ADDITIONS)
def test_an_addition_touches_a_new_file_and_a_table_at_most(what, copy):
    addition = ADDITIONS[what]
    touched = {addition.line[0], addition.also[0], *addition.new} - {""}
    assert len(touched) <= 2
    spans = [["gemm", 0, 5_000_000], ["gemm", 6_000_000, 9_000_000]]
    (copy.parent / "spans.json").write_text(f'{{"spans": {spans}}}'.replace("'", '"'))
    assert addition.answer not in (ask(copy, addition.asks) or "")
    for name, after, more in (addition.line, addition.also):
        if name:
            text = (copy / name).read_text()
            assert text.count(after) == 1
            (copy / name).write_text(text.replace(after, after + more))
    for name, text in addition.new.items():
        assert not (copy / name).exists()
        (copy / name).write_text(text)
    assert addition.answer in (ask(copy, addition.asks) or "")
