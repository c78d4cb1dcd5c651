"""Every reader of weft that takes what somebody else wrote, as a function of bytes."""

from __future__ import annotations

import atexit
import gzip
import shutil
import tempfile
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from functools import cache, partial
from io import StringIO
from pathlib import Path

import numpy as np

from tests.fuzz import command_line, samples
from tests.fuzz.guided import Target
from weft._core import FRAME_HEAD, seal
from weft.cli import main
from weft.collectives import collective
from weft.compress.codec_registry import codec_of, encoded
from weft.hardware.files import CATALOGUE, platform
from weft.models.find import find_job, find_workload
from weft.models.named import tables_of
from weft.planner.plan import Plan
from weft.planner.planning import plan
from weft.schedule.schedule_json import from_json, to_json
from weft.step.step_graph import StepGraph
from weft.sweep.cells import cells_of
from weft.sweep.journal import Journal
from weft.trace import read as read_trace
from weft.units import parse_rate, parse_sizes, parse_time
from weft.whatif import analyze, what_if_jobs


@cache
def _folder() -> Path:
    folder = tempfile.mkdtemp(prefix="weft-fuzz-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return Path(folder)


def _by_file(name: str, read: Callable[[Path], object], given: bytes) -> None:
    path = _folder() / name
    path.write_bytes(given)
    read(path)


def _text(read: Callable[[str], object], given: bytes) -> None:
    read(given.decode(errors="surrogateescape"))


def _command(given: bytes) -> None:
    arguments = command_line.arguments_of(given)
    if arguments is None:
        return
    with redirect_stdout(StringIO()), redirect_stderr(StringIO()) as errors:
        code = main(arguments)
    assert code in (0, 1, 2), code
    assert errors.getvalue() or code == 0, "an error without a word"


def _decode(name: str, dtype: str, given: bytes) -> None:
    """Take a frame; the first byte says how long the chunk is, its last bit whether to seal it."""
    chunk = np.zeros(4 * (given[0] >> 1) if given else 0, np.uint8)
    frame, codec = np.frombuffer(given[1:], np.uint8).copy(), codec_of(name, dtype)
    if given[:1] and given[0] & 1 and len(frame) >= FRAME_HEAD and hasattr(codec, "_framed"):
        number, kind, parameter = codec._framed._key
        seal(frame, number, kind, parameter, len(chunk), len(frame) - FRAME_HEAD)
    codec.decode(frame, chunk)


def _frames(name: str, dtype: str) -> tuple[bytes, ...]:
    width = 4 if dtype == "float32" else 2
    values = np.random.default_rng(1).normal(size=60).astype(f"f{width}").view(np.uint8)
    known = encoded(codec_of(name, dtype), values).tobytes()
    return tuple(bytes([len(values) // 4 * 2 + sealed]) + known for sealed in (0, 1))


def _whatif(path: Path) -> None:
    what_if_jobs([path], anyway=True)


def _units(text: str) -> None:
    for parse in (parse_sizes, parse_rate, parse_time):
        try:
            parse(text)
        except ValueError as error:
            if not hasattr(error, "hint"):
                raise


def _a_plan() -> bytes:
    machine = platform("mi300x-8", num_ranks=2)
    settings = {"layers": "1", "batch": "2", "seq": "64", "fsdp": "true"}
    return plan(find_workload("gpt2", 2, settings), machine).to_json()


def _a_workload() -> bytes:
    return find_workload("gpt2", 2, {"layers": "1", "batch": "2", "seq": "64"}).to_json()


def _schedules() -> tuple[bytes, ...]:
    asked = (("all_reduce", "ring"), ("all_gather", "dma"), ("broadcast", "chain+pack"))
    made = [collective(kind, way, num_ranks=3, nbytes=48 * 3) for kind, way in asked]
    return tuple(to_json(schedule).encode() for schedule in made)


def _sweep_file(path: Path) -> None:
    Journal.open(cells_of(["kernel", "gemm", "m=1"]), path).rows()


_CATALOGUE = ("devices/mi300x", "devices/cpu", "nodes/cpu", "nodes/l40s-8-nop2p")
_SWEEP = (
    b'{"weft_sweep": 1, "fingerprint": "%s", "words": ["kernel"], "cells": 1}\n'
    b'{"number": 0, "rows": [{"seconds": 1.0}], "error": "", "again": false}\n'
) % cells_of(["kernel", "gemm", "m=1"]).fingerprint.encode()


def _traces() -> tuple[Target, ...]:
    read = partial(_by_file, "trace.json", read_trace)
    words = (
        b'"traceEvents": [',
        b'"nodes": [',
        b'"workload_graph": [',
        b'"ph": "X"',
        b'"entries": [',
        b"\x1f\x8b",
    )
    seeds = {
        "kineto": (samples.KINETO, gzip.compress(samples.KINETO), samples.KINETO_ODD),
        "execution trace": (samples.NODES,),
        "chakra": (samples.CHAKRA,),
        "chakra json": (samples.GRAPH,),
        "rocprof": (samples.ROCPROF,),
        "nsight": (samples.nsight(),),
        "flight recorder": (samples.FLIGHT_RECORDER,),
    }
    everything = [each for given in seeds.values() for each in given]
    return (
        *(Target(name, read, given, words) for name, given in seeds.items()),
        Target("analyze", partial(_by_file, "trace.json", analyze), everything, words),
        Target("whatif", partial(_by_file, "trace.json", _whatif), seeds["kineto"][::2], words),
    )


def _configurations() -> tuple[Target, ...]:
    """Files of other programs that describe a model or a job; those without a model get one."""

    def read(path: Path, settings: dict[str, str] | None = None) -> None:
        job = find_job(str(path), 8, settings)
        assert job is None or job.settings

    def run(path: Path) -> None:
        read(path, {"model": "gpt2"})

    return (
        Target("hugging face", partial(_by_file, "config.json", read), (samples.CONFIG,)),
        Target("torchtitan", partial(_by_file, "t.toml", read), (samples.TORCHTITAN,)),
        Target("megatron", partial(_by_file, "t.sh", read), (samples.MEGATRON,)),
        Target("megatron yaml", partial(_by_file, "t.yaml", read), (samples.MEGATRON_YAML,)),
        Target("deepspeed", partial(_by_file, "d.json", run), (samples.DEEPSPEED,)),
        Target("accelerate", partial(_by_file, "a.yaml", run), (samples.ACCELERATE,)),
    )


def targets() -> tuple[Target, ...]:
    """Every target; making the seeds takes a moment."""
    machines = tuple((CATALOGUE / f"{name}.toml").read_bytes() for name in _CATALOGUE)
    kernels = b"m,n,k,dtype\n1,64,64,fp16\n8,64,64,\n"
    priced = ["kernel", "gemm", "--on", "h100-8", "--json", "--from"]
    return (
        *_traces(),
        Target("schedule", lambda given: from_json(given.decode(errors="replace")), _schedules()),
        Target("plan", Plan.from_json, (_a_plan(),)),
        Target("workload json", StepGraph.from_json, (_a_workload(),)),
        Target(
            "workload toml",
            partial(_by_file, "w.toml", lambda path: find_workload(str(path), 4)),
            (samples.WORKLOAD, samples.TABLES),
        ),
        *_configurations(),
        Target(
            "tables",
            partial(_by_file, "t.toml", lambda path: tables_of(str(path), {}, 8)),
            (samples.TABLES,),
        ),
        Target("platform", partial(_by_file, "p.toml", platform), (samples.PLATFORM, *machines)),
        Target(
            "network",
            partial(_text, lambda text: platform(text.replace("\0", ""))),
            (
                b"switch(8)@400GiB/s,936ns/switch(2048)@50GiB/s,2us",
                b"mi300x-8x16",
                b"ring(4)@1GB/s",
            ),
        ),
        Target("units", partial(_text, _units), (b"1KiB:64MiB,5", b"400Gbit/s", b"1.5ms", b"1e3k")),
        Target(
            "kernel csv", partial(_by_file, "k.csv", lambda p: _call([*priced, str(p)])), (kernels,)
        ),
        Target("sweep file", partial(_by_file, "s.jsonl", _sweep_file), (_SWEEP,)),
        *(
            Target(f"codec {name}", partial(_decode, name, dtype), _frames(name, dtype))
            for name, dtype in (
                ("zfp:8", "float32"),
                ("blosc2:lz4", "float32"),
                ("pack", "float16"),
            )
        ),
        Target("command line", _command, command_line.SEEDS, command_line.WORDS),
    )


def _call(arguments: list[str]) -> None:
    with redirect_stdout(StringIO()), redirect_stderr(StringIO()):
        assert main(arguments) in (0, 1, 2)
