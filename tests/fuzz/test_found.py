"""What fuzzing found stays found, and a sample of it runs every day. ``make fuzz`` runs more."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import cache, reduce
from operator import getitem
from random import Random
from typing import Any

import numpy as np
import pytest

from tests.fuzz.changes import changed
from tests.fuzz.guided import Target, fuzz, trial
from tests.fuzz.targets import targets
from weft._core import TraceScanner
from weft.cli import main
from weft.compress.codec_registry import codec_of, encoded
from weft.errors import CodecError, FormatError, UsageError, WeftError
from weft.hardware import platform
from weft.hardware.toml_text import to_toml
from weft.trace.formats.chakra import read_chakra
from weft.units import parse_rate, parse_sizes, parse_time

pytestmark = pytest.mark.thorough

_DEEP = b"[" * 3000


@cache
def by_name() -> dict[str, Target]:
    return {target.name: target for target in targets()}


def workload(**more: object) -> bytes:
    known = json.loads(by_name()["workload json"].seeds[0])
    return json.dumps(known | {"workload": known["workload"] | more}).encode()


# Each was an exception of another kind, a crash, or memory without end.
FOUND = {
    "nodes that are no objects": ("execution trace", lambda: b'{"nodes": ["2GiB", 0]}'),
    "a deep execution trace": ("execution trace", lambda: b'{"nodes": ' + _DEEP),
    "a deep chakra graph": ("chakra json", lambda: b'{"workload_graph": ' + _DEEP),
    "a deep file of rocprof": ("rocprof", lambda: b'{"rocprofiler-sdk-tool": ' + _DEEP),
    "rocprof that is no UTF-8": (
        "rocprof",
        lambda: b'{"rocprofiler-sdk-tool": [{"agents": [{"name": "\xff"}]}]}',
    ),
    "a copy of more bytes than a word counts": (
        "rocprof",
        lambda: json.dumps(
            {
                "rocprofiler-sdk-tool": [
                    {"buffer_records": {"memory_copy": [{"start_timestamp": 1, "bytes": 2**63}]}}
                ]
            }
        ).encode(),
    ),
    "a plan that is no UTF-8": ("plan", lambda: b'{"weft_plan": 1, "plan": {"workload": "\x8c"}}'),
    "alternatives of a plan that are no list": (
        "plan",
        lambda: (
            by_name()["plan"].seeds[0].replace(b'"alternatives": [', b'"alternatives": 7, "x": [')
        ),
    ),
    "a deep plan": ("plan", lambda: b'{"weft_plan": 1, "plan": ' + _DEEP),
    "a workload that is no UTF-8": ("workload json", lambda: b'{"weft_workload": 1, "\xd1": 1}'),
    "a deep workload": ("workload json", lambda: b'{"weft_workload": 1, "x": ' + _DEEP),
    "four thousand million ranks": ("workload json", lambda: workload(num_ranks=2**32)),
    "more ranks than a word counts": ("workload json", lambda: workload(num_ranks=2**64 - 1)),
    "deep TOML": ("workload toml", lambda: b"batch = " + _DEEP),
    "a setting beyond all floats": ("workload toml", lambda: b'model = "gpt2"\ntp = ' + b"9" * 400),
    "a setting without end": ("workload toml", lambda: b'model = "gpt2"\nlayers = inf\n'),
    "a deep platform": ("platform", lambda: b"name = " + _DEEP),
    "a table count without end": (
        "tables",
        lambda: b"[[tables]]\nrows = 1\ndim = 1\ncount = 1000000000000\n",
    ),
    "counts beyond all floats": (
        "tables",
        lambda: b"[[tables]]\nrows = 9\ndim = 1\ncounts = [1, " + b"9" * 400 + b"]\n",
    ),
    "pooling beyond all floats": (
        "tables",
        lambda: b"[[tables]]\nrows = 9\ndim = 1\npooling = " + b"9" * 400,
    ),
    "a sweep's line without a number": (
        "sweep file",
        lambda: by_name()["sweep file"].seeds[0].replace(b'"number"', b'"nomber"'),
    ),
    "a sweep of other words": ("sweep file", lambda: b'{"weft_sweep": 1, "words": 3}\n'),
    "a latency longer than any time": (
        "platform",
        lambda: b'extends = "h100-8"\n[[levels]]\nlatency = 1e300\n',
    ),
    "a rate of next to nothing": (
        "platform",
        lambda: b'extends = "h100-8"\n[device]\nmemory_rate = 1e-300\n',
    ),
    "more ranks than memory holds": (
        "platform",
        lambda: b'extends = "h100-8"\n[[levels]]\nsize = 2147483647\n',
    ),
    "more units than memory holds": (
        "platform",
        lambda: b'extends = "h100-8"\n[device]\nunits = 1000000000\n',
    ),
    "a sealed frame of nothing": ("codec zfp:8", lambda: b"\x01" + bytes(60)),
}


@pytest.mark.parametrize(("name", "make"), FOUND.values(), ids=FOUND.keys())
def test_what_was_found_is_refused_in_a_line(name, make):
    with pytest.raises(WeftError) as raised:
        by_name()[name].read(make())
    assert len(str(raised.value)) < 1000


def test_collectives_that_took_no_time_are_analysed():
    about = {"Collective name": "allreduce", "In msg nelems": 8, "dtype": "Float", "stream": 7}
    about |= {"Out msg nelems": 8, "Group size": 2, "Process Group Name": "0", "device": 0}
    kernel = {"ph": "X", "cat": "kernel", "name": "ncclDevKernel_AllReduce_Sum_f32_RING_LL"}
    events = [
        {**kernel, "pid": 0, "tid": 7, "ts": 20 * n, "dur": dur, "args": about}
        for n, dur in enumerate((0, 4, 4))
    ]
    of = {"backend": "nccl", "rank": 0, "world_size": 2}
    by_name()["analyze"].read(json.dumps({"distributedInfo": of, "traceEvents": events}).encode())


def test_a_sweep_without_an_answer_says_so_next_to_its_table(capsys):
    assert main(["sweep", "kernel", "gemm", "m=1", "n=1", "k=1", "--on", "nothing"]) == 1
    assert "1 of 1 cells have no answer" in capsys.readouterr().err


@pytest.mark.parametrize("parse", [parse_sizes, parse_rate, parse_time])
def test_a_quantity_of_five_thousand_digits_is_refused(parse):
    with pytest.raises(UsageError, match=r"cannot parse '9{100}'"):
        parse("9" * 5000)


def test_a_line_of_more_values_than_columns_is_refused(tmp_path, capsys):
    path = tmp_path / "k.csv"
    path.write_text("m,n,k\n1,2,3,4\n")
    assert main(["kernel", "gemm", "--on", "h100-8", "--from", str(path)]) == 2
    assert "more values than columns" in capsys.readouterr().err


@pytest.mark.parametrize("name", [target.name for target in targets()])
def test_a_sample_of_inputs_is_answered_or_refused(name):
    """Hundreds of neighbours of good inputs, always the same; make fuzz looks for new ones."""
    outcome = fuzz(by_name()[name], seconds=0.2, seed=1, most=300)
    assert not outcome.found
    assert outcome.inputs >= 1


def chakra_of(path, node):
    path.write_bytes(b"\x07\n\x050.0.4" + bytes([len(node)]) + node)
    return read_chakra(path)


def test_a_chakra_node_whose_fields_have_other_types_is_refused(tmp_path):
    with pytest.raises(FormatError, match="Chakra trace"):
        chakra_of(tmp_path / "rank.et", b"2\x01a")


def test_a_chakra_node_of_a_thread_without_number_is_on_the_first(tmp_path):
    endless = b"R\x0e\n\x03tid\x19" + b"\0" * 6 + b"\xf0\x7f"
    (node,) = chakra_of(tmp_path / "rank.et", endless).nodes
    assert node.lane == 0


@pytest.mark.parametrize("name", ["zfp:8", "zfp:16"])
def test_a_payload_that_lies_about_its_size_is_refused(name):
    codec = codec_of(name, "float32")
    frame = encoded(codec, np.ones(64, np.float32))
    with pytest.raises(CodecError, match=r"is not of 512 bytes|another size"):
        codec.decode(frame, np.zeros(512, np.uint8))


def test_a_trace_in_pieces_gives_what_the_whole_gives():
    """An object behind something lost began an event only if a piece began with it."""
    text = (
        b'["ph" 1\xff {"ph": "X", "name": "b", "ts": 5, "dur": 1}, {"ph": "X", "ts": 6, "dur": 1}]'
    )
    counts = set()
    for size in (1, 2, 3, 7, len(text)):
        scanner = TraceScanner()
        for at in range(0, len(text), size):
            scanner.feed(text[at : at + size])
        scanner.finish()
        counts.add(scanner.num_events)
    assert counts == {1}


def test_a_time_before_any_clock_is_refused():
    scanner = TraceScanner()
    scanner.feed(b'[{"ph": "X", "ts": -999999999999999999, "dur": 1}]')
    assert scanner.finish()
    assert scanner.losses()["num_untimed"] == 1


def test_the_fuzzer_finds_what_is_wrong_behind_a_line():
    """A reader with a fault that one byte in a certain place shows."""

    def read(given: bytes) -> None:
        if given[:1] == b"[" and len(given) > 9 and given[4:5] == b"]":
            raise ZeroDivisionError

    outcome = fuzz(Target("wrong", read, (b"[1, 2, 3, 4]",)), seconds=20, seed=1, most=20_000)
    assert [*outcome.found] == ["ZeroDivisionError at outside"]
    assert trial(Target("right", len, (b"",)), b"x") == ""


def test_neighbours_of_an_input_differ_from_it():
    dice, corpus = Random(1), [b'{"a": [1, 2, {"b": null}]}', b"a = 1\nb = 2\n"]
    assert len({changed(dice, corpus, (b"word",)) for _ in range(200)}) > 100


_ABSURD = (0, 1e-300, 1e-12, 1e-3, 1, 3, 1e9, 1e18, 1e30, 1e200, 1e300, 2**31, 2**53, 2**63, 10**30)
_ASKED = (
    "c3 --gemm 256x256x256 --collective all_gather,all_to_all --size 8,1GiB",
    "collective all_reduce --size 1KiB,1GiB --algorithm all --energy",
    "collective all_to_all --size 1MiB",
    "predict gpt2 --set layers=1 --set batch=8 --set fsdp=true --anyway",
    "plan gpt2 --set layers=1 --set batch=8 --set tp=4 --mode heuristic --anyway",
)


def numbers_in(table: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """Yield where the numbers of a platform stand, but for sizes of levels."""
    if isinstance(table, dict) and "value" not in table:
        for key, value in table.items():
            yield from numbers_in(value, (*path, key))
    elif isinstance(table, list):
        for number, value in enumerate(table):
            yield from numbers_in(value, (*path, number))
    elif not isinstance(table, str | bool) and path[-1] != "size":
        yield path


@pytest.mark.parametrize("seed", range(40))
def test_a_platform_of_absurd_numbers_is_priced_or_refused_in_a_line(seed, tmp_path, capsys):
    random = Random(seed)
    table: Any = platform(
        random.choice(("h100-8", "mi300x-8", "v100-8", "l40s-8-nop2p"))
    ).to_table()
    places = list(numbers_in(table))
    for _ in range(random.choice((1, 1, 2, 4))):
        *way, last = random.choice(places)
        reduce(getitem, way, table)[last] = random.choice(_ABSURD)
    file = tmp_path / "absurd.toml"
    file.write_text(to_toml(table))
    code = main([*random.choice(_ASKED).split(), "--on", str(file)])
    told = capsys.readouterr().err
    assert code == 0 or (code in (1, 2) and 1 <= len(told.splitlines()) <= 2)
