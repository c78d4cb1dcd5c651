"""Folders, globs, archives, stdin, and the formats of Nsight Systems and the flight recorder."""

import io
import json
import pickle
import sqlite3
import sys
import zipfile
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.trace.events import (
    all_reduce,
    event,
    job,
    kernel,
    launch,
    mark,
    one_step,
    text,
    written,
)
from tests.trace.nsight_files import NEW, NEWEST, OLD, write_nsight
from weft.errors import FormatError, UsageError
from weft.report.analysis_page import page
from weft.trace import analyze, collectives, read
from weft.trace.analysis import rank_digest
from weft.trace.analysis.analyzing import analyze_digests
from weft.trace.analysis.rank_digest import aligned_digests, digests_of
from weft.trace.analysis.trace_profile import side_of
from weft.trace.annotated import annotated_json
from weft.trace.formats.trace_files import trace_files


def numbers(analysis):
    """Everything measured of a job that does not name its files."""
    return [
        (
            rank.rank,
            asdict(rank.total),
            [asdict(step) for step in rank.steps],
            [
                (use.kind, use.start, use.waiting, use.moving, use.exposed)
                for use in rank.collectives
            ],
            [asdict(part) for part in rank.idle],
        )
        for rank in analysis.ranks
    ], [asdict(late) for late in analysis.stragglers]


def test_a_folder_a_glob_and_an_archive_are_the_same_ranks(tmp_path):
    paths = job(tmp_path, (100.0, 400.0))
    (tmp_path / "README.md").write_text("not a trace")
    archive = tmp_path / "job.zip"
    with zipfile.ZipFile(archive, "w") as file:
        for path in paths:
            file.write(path, f"traces/{path.name}")
    expected = numbers(analyze(paths))
    assert numbers(analyze(tmp_path)) == expected
    assert numbers(analyze(str(tmp_path / "rank*.json"))) == expected
    assert numbers(analyze(archive)) == expected
    assert analyze(archive).ranks[1].file == f"{archive}/traces/rank1.json"


def test_stdin_is_a_trace(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(text(one_step()))))
    assert analyze("-").ranks[0].total.exposed == pytest.approx(30e-6)


def test_files_are_in_natural_order(tmp_path):
    for rank in (10, 9, 100):
        written(tmp_path / f"rank{rank}.json", one_step())
    assert [file.path.name for file in trace_files(tmp_path)] == [
        "rank9.json",
        "rank10.json",
        "rank100.json",
    ]


@pytest.mark.parametrize("odd", [b"", b"not a trace at all", b'{"schemaVersion": 1}'])
def test_an_unreadable_file_is_noted_and_the_others_are_analysed(tmp_path, odd):
    paths = job(tmp_path, (100.0, 400.0))
    (tmp_path / "rank2.json").write_bytes(odd)
    analysis = analyze(tmp_path)
    assert len(analysis.ranks) == len(paths)
    assert sum("rank2.json" in note for note in analysis.notes) == 1
    with pytest.raises(FormatError, match="rank2"):
        analyze(tmp_path / "rank2.json")


@pytest.mark.parametrize("cut", [0.5, 0.9])
def test_a_trace_that_is_still_being_written_is_read_as_far_as_it_is(tmp_path, cut):
    (path,) = job(tmp_path, (100.0,), steps=9)
    whole = path.read_bytes()
    path.write_bytes(whole[: int(len(whole) * cut)])
    analysis = analyze(path)
    assert 0 < len(analysis.ranks[0].steps) < 9
    assert analysis.ranks[0].trace.losses


def test_folders_and_archives_without_traces_say_what_was_expected(tmp_path):
    with pytest.raises(FormatError, match="without traces"):
        analyze(tmp_path)
    with zipfile.ZipFile(tmp_path / "empty.zip", "w") as file:
        file.writestr("notes.txt", "none")
    with pytest.raises(FormatError, match="without traces"):
        analyze(tmp_path / "empty.zip")
    (tmp_path / "damaged.zip").write_bytes(b"PK\x03\x04 cut")
    with pytest.raises(FormatError, match="zip archive"):
        analyze(tmp_path / "damaged.zip")
    with pytest.raises(FormatError, match="no file matches"):
        analyze(str(tmp_path / "none*.json"))
    with pytest.raises(UsageError):
        analyze([])


def test_streamed_ranks_are_analysed_as_those_in_memory(tmp_path, monkeypatch):
    paths = job(tmp_path, (100.0, 400.0, 150.0, 120.0), clocks=(0.0, 37.0, 0.0, -12.0), steps=5)
    whole = analyze(paths)
    monkeypatch.setattr("weft.trace.analysis.analyzing.AT_ONCE", 2)
    streamed = analyze(paths)
    for mine, theirs in zip(streamed.ranks, whole.ranks, strict=True):
        assert mine.rank == theirs.rank
        assert asdict(mine.total) == pytest.approx(asdict(theirs.total))
        for step, other in zip(mine.steps, theirs.steps, strict=True):
            assert asdict(step.split) == pytest.approx(asdict(other.split))
            assert step.start == pytest.approx(other.start, abs=1e-9)
        for use, same in zip(mine.collectives, theirs.collectives, strict=True):
            assert (use.kind, use.nbytes, use.last_rank) == (
                same.kind,
                same.nbytes,
                same.last_rank,
            )
            assert use.waiting == pytest.approx(same.waiting)
        assert [part.what for part in mine.idle] == [part.what for part in theirs.idle]
        assert len(mine.trace) == len(mine.collectives) < len(theirs.trace)
    assert [late.rank for late in streamed.stragglers] == [late.rank for late in whole.stragglers]
    assert streamed.advice
    assert all(each.basis == "bound" for each in streamed.advice)


def test_streaming_skips_what_it_cannot_read(tmp_path):
    job(tmp_path, (100.0, 400.0))
    (tmp_path / "rank7.json").write_bytes(b"")
    digests, skipped = digests_of(trace_files(tmp_path))
    assert len(digests) == 2
    assert len(skipped) == 1
    (one,), _ = aligned_digests(digests)
    assert analyze_digests(*one).stragglers[0].rank == 1
    with pytest.raises(FormatError, match="none of 1"):
        digests_of(trace_files(tmp_path / "rank7.json"))
    assert rank_digest.AT_ONCE == 16


@pytest.mark.parametrize("version", [OLD, NEW, NEWEST])
def test_nsight_and_kineto_give_the_same_numbers(tmp_path, version):
    paths = job(tmp_path, (100.0, 400.0))
    events = [json.loads(path.read_bytes())["traceEvents"] for path in paths]
    # Kineto's kernels say how large a collective is; here both formats do not.
    for rank, listed in enumerate(events):
        for each in listed:
            known = ("correlation", "stream", "device")
            each["args"] = {key: each["args"][key] for key in known if key in each["args"]}
        written(paths[rank], listed, rank=rank)
    export = write_nsight(tmp_path / "job.sqlite", events, version=version)
    kineto, nsight = analyze(paths), analyze(export)
    assert [rank.trace.format for rank in nsight.ranks] == ["nsight", "nsight"]
    assert nsight.ranks[0].trace.device == "NVIDIA A100-SXM4-80GB"
    for mine, theirs in zip(nsight.ranks, kineto.ranks, strict=True):
        assert asdict(mine.total) == pytest.approx(asdict(theirs.total))
        assert [s.name for s in mine.steps] == [s.name for s in theirs.steps]
        for step, other in zip(mine.steps, theirs.steps, strict=True):
            assert asdict(step.split) == pytest.approx(asdict(other.split))
            assert step.seconds == pytest.approx(other.seconds)
        for part, same in zip(mine.idle, theirs.idle, strict=True):
            assert part.what == same.what
            assert part.seconds == pytest.approx(same.seconds)
    assert [late.rank for late in nsight.stragglers] == [late.rank for late in kineto.stragglers]


def test_nsight_ranges_are_operators_steps_and_collectives(tmp_path):
    path = write_nsight(
        tmp_path / "rank3.sqlite",
        [[mark(4, 0, 100), launch(1, 1), kernel(5, 20, correlation=1)]],
        version=NEWEST,
    )
    pid = 1000 << 24
    with closing(sqlite3.connect(path)) as base:
        base.executemany(
            "INSERT INTO NVTX_EVENTS (start, end, eventType, text, globalTid, jsonText) "
            "VALUES (?, ?, ?, ?, ?, ?)",
            [
                (
                    500,
                    3000,
                    59,
                    "aten::mm, seq = 3, op_id = 9, sizes = [[8, 4], [4, 2]]",
                    pid | 1,
                    None,
                ),
                (600, 2900, 59, "ncclAllReduce", pid | 1, '{"Message size [bytes]": 4096}'),
                (700, None, 34, "a mark", pid | 1, None),
                (None, 800, 59, "cut", pid | 1, None),
            ],
        )
        base.execute(
            "INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL (start, end, deviceId, streamId, "
            "correlationId, globalPid, shortName) VALUES (2000, 9000, 0, 20, 1, ?, 99)",
            (pid,),
        )
        base.execute("INSERT INTO StringIds VALUES (99, 'ncclDevKernel_AllReduce_Sum_f32')")
        base.commit()
    trace = read(path)
    assert trace.rank == 3
    assert [step.name for step in trace.marks] == ["ProfilerStep#4"]
    (found,) = collectives(trace)
    assert (found.kind, found.nbytes) == ("all_reduce", 4096)
    table = analyze(path).ranks[0].kernel_table
    assert {(use.operator, use.shape.split("]")[0]) for use in table} == {("aten::mm", "[8, 4")}


def test_sqlite_files_that_are_no_exports_are_refused(tmp_path):
    path = tmp_path / "other.sqlite"
    with closing(sqlite3.connect(path)) as base:
        base.execute("CREATE TABLE people (name TEXT)")
        base.commit()
    with pytest.raises(FormatError, match="no export of Nsight Systems"):
        read(path)
    whole = write_nsight(tmp_path / "cut.sqlite", [one_step()]).read_bytes()
    (tmp_path / "cut.sqlite").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(FormatError, match="SQLite"):
        read(tmp_path / "cut.sqlite")
    (tmp_path / "report.nsys-rep").write_bytes(b"NVTX")
    with pytest.raises(FormatError, match="raw report") as caught:
        analyze(tmp_path / "report.nsys-rep")
    assert "nsys export" in str(caught.value.hint)


def dump(entries, **more):
    groups = {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1]"}}
    return {"version": "2.10", "pg_config": groups, "pg_status": {}, "entries": entries, **more}


def entry(number, end, duration=None, state="completed"):
    return {
        "record_id": number,
        "pg_id": 0,
        "process_group": ["0", "default_pg"],
        "collective_seq_id": number,
        "profiling_name": "nccl:all_reduce",
        "time_created_ns": 1_700_000_000_000_000_000 + end - 5000,
        "time_discovered_started_ns": None,
        "time_discovered_completed_ns": None
        if end is None or state != "completed"
        else 1_700_000_000_000_000_000 + end,
        "duration_ms": duration,
        "input_sizes": [[1024, 4]],
        "output_sizes": [[1024, 4]],
        "input_dtypes": ["Float"],
        "output_dtypes": ["Float"],
        "state": state,
        "is_p2p": False,
    }


def test_flight_recorders_of_two_ranks_say_who_was_late(tmp_path):
    for rank, durations in enumerate(((0.5, 0.6), (0.1, 0.1))):
        entries = [entry(n + 1, 1_000_000 * (n + 1), took) for n, took in enumerate(durations)]
        (tmp_path / f"nccl_trace_rank_{rank}").write_text(json.dumps(dump(entries)))
    analysis = analyze(tmp_path)
    assert [rank.rank for rank in analysis.ranks] == [0, 1]
    assert {use.nbytes for rank in analysis.ranks for use in rank.collectives} == {16384}
    assert analysis.ranks[0].total.waiting == pytest.approx(0.9e-3)
    assert analysis.stragglers[0].rank == 1


def test_collectives_that_never_completed_are_named(tmp_path):
    path = tmp_path / "rank0.json"
    path.write_text(json.dumps(dump([entry(1, 1000, 0.001), entry(2, 2000, state="started")])))
    (note,) = read(path).losses
    assert "number 2" in note
    assert "started" in note


def test_a_pickled_flight_recorder_is_refused_with_the_way_to_json(tmp_path):
    path = tmp_path / "nccl_trace_rank_0"
    path.write_bytes(pickle.dumps(dump([])))
    with pytest.raises(FormatError, match="pickle") as caught:
        read(path)
    assert "_dump_nccl_trace_json" in str(caught.value.hint)


@pytest.mark.parametrize(
    "odd", ['{"entries": 3}', '{"entries": [{"pg_id": "x"', '{"entries": [3]}']
)
def test_damaged_flight_recorders_are_one_line(tmp_path, odd):
    path = tmp_path / "rank0.json"
    path.write_text(odd)
    if odd.endswith("[3]}"):
        assert not len(read(path))
    else:
        with pytest.raises(FormatError):
            read(path)


def test_on_names_the_machine_of_a_trace_without_device(tmp_path):
    events = one_step()
    path = Path(tmp_path / "rank0.json")
    path.write_text(json.dumps({"traceEvents": events}))
    assert analyze(path).ranks[0].collectives[0].link is None
    assert analyze(path, on="a100-8").ranks[0].collectives[0].link is not None
    with pytest.raises(UsageError, match="--on"):
        analyze(path, on="switch(8)@400GiB/s,936ns")


def test_sizes_of_nccl_ranges_are_those_of_one_message(tmp_path):
    """NCCL tells what a rank gives to an all-gather, and what it gets from a reduce-scatter."""
    path = write_nsight(tmp_path / "rank0.sqlite", [[mark(4, 0, 100)]], version=NEWEST)
    pid = 1000 << 24
    calls = ("ncclAllGather", "ncclReduceScatter", "ncclAllReduce", "ncclAllGather")
    groups = (77, 77, 77, 78)  # the creation of the last one was not recorded
    with closing(sqlite3.connect(path)) as base:
        add = "INSERT INTO NVTX_EVENTS (start, end, eventType, text, globalTid, jsonText) "
        add += "VALUES (?, ?, 59, ?, ?, ?)"
        created = {"NCCL communicator ID": 77, "No. of ranks": 4, "Rank": 0}
        base.execute(add, (0, 10, "ncclCommInitRank", pid | 1, json.dumps(created)))
        for number, (call, group) in enumerate(zip(calls, groups, strict=True)):
            at = 1000 * (number + 1)
            payload = {"NCCL communicator ID": group, "Message size [bytes]": 4096}
            base.execute(add, (at, at + 100, call, pid | 1, json.dumps(payload)))
            base.execute(
                "INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES (?, ?, 0, ?, ?, 99, 0)",
                (at + 10, at + 20, pid | 1, number + 1),
            )
            base.execute(
                "INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL (start, end, deviceId, streamId, "
                "correlationId, globalPid, shortName) VALUES (?, ?, 0, 20, ?, ?, 98)",
                (at + 50, at + 500, number + 1, pid),
            )
        base.execute("INSERT INTO StringIds VALUES (98, 'ncclDevKernel_Generic')")
        base.execute("INSERT INTO StringIds VALUES (99, 'cudaLaunchKernel_v7000')")
        base.commit()
    found = collectives(read(path))
    assert [each.kind for each in found] == [
        "all_gather",
        "reduce_scatter",
        "all_reduce",
        "all_gather",
    ]
    assert [each.nbytes for each in found] == [16384, 16384, 4096, None]
    assert [(each.in_bytes, each.out_bytes) for each in found[:2]] == [(4096, 16384), (16384, 4096)]
    assert [(each.group, each.num_ranks) for each in found] == [*[("77", 4)] * 3, ("78", None)]


def batch_of_messages(number, end, **more):
    """A batch as torch records it: its calls have no times, its launch has theirs."""
    about = {"collective_seq_id": 0, "p2p_seq_id": number, "is_p2p": True}
    calls = [
        {**entry(number, 0, state="scheduled"), **about, "profiling_name": f"nccl:{name}"}
        for name in ("send 0->1", "recv 0<-1")
    ]
    launch = {**entry(number, end, 0.001), **about, "profiling_name": "nccl:coalesced"}
    return [*calls, {**launch, "input_sizes": [], "output_sizes": [], **more}]


def test_calls_of_a_batch_that_completed_are_not_unfinished(tmp_path):
    path = tmp_path / "rank0.json"
    done = [*batch_of_messages(1, 1000), entry(1, 2000, 0.001), *batch_of_messages(2, 3000)]
    path.write_text(json.dumps(dump(done)))
    assert read(path).losses == ()
    open_ = batch_of_messages(3, 0, time_discovered_completed_ns=None, state="started")
    path.write_text(json.dumps(dump([*done, *open_])))
    (note,) = read(path).losses
    assert note.startswith("1 collectives did not complete; the first is nccl:coalesced")


def test_a_scalar_has_one_element(tmp_path):
    path = tmp_path / "rank0.json"
    sizes: dict[str, list[list[int]]] = {"input_sizes": [[]], "output_sizes": [[]]}
    path.write_text(json.dumps(dump([{**entry(1, 1000, 0.001), **sizes}])))
    (found,) = collectives(read(path))
    assert found.nbytes == 4


def test_reports_of_streamed_ranks_have_what_is_kept_of_them(tmp_path, monkeypatch):
    job(tmp_path, (100.0, 400.0), steps=5)
    with zipfile.ZipFile(tmp_path / "job.zip", "w") as archive:
        for path in sorted(tmp_path.glob("rank*.json")):
            archive.write(path, path.name)
    whole = analyze(tmp_path / "job.zip")
    monkeypatch.setattr("weft.trace.analysis.analyzing.AT_ONCE", 1)
    streamed = analyze(tmp_path / "job.zip")
    events = [json.loads(annotated_json(each))["traceEvents"] for each in (whole, streamed)]
    names = ("ProfilerStep#", "all_reduce", "waiting for", "moving")
    ours = [
        [
            (e["name"], e["pid"], e["ts"], e["dur"])
            for e in each
            if e.get("cat") == "weft" and e["name"].startswith(names)
        ]
        for each in events
    ]
    assert ours[0] == ours[1] != []
    # Exposed and idle time is that of events which are not there any more.
    assert not any(e["name"] in ("exposed", "idle") for e in events[1])
    assert "are not kept" in page(streamed)
    sides = [side_of(each) for each in (whole, streamed)]
    assert sides[0].profiles == sides[1].profiles


def test_streamed_ranks_have_the_shapes_of_their_execution_traces(tmp_path, monkeypatch):
    op = {"name": "aten::mm", "id": 2, "parent": 1, "tid": 1, "rf_id": 1, "op_schema": ""}
    op |= {"inputs": [], "input_shapes": [[8, 4], [4, 2]], "input_types": ["Tensor(float)"] * 2}
    for rank in range(2):
        events = [
            event("aten::mm", "cpu_op", 0, 10, 1),
            launch(1, 1),
            kernel(20, 5, correlation=1),
            launch(30, 2),
            all_reduce(40, 10, 2),
        ]
        for each in events:
            each["pid"] = 100 + rank
        written(tmp_path / f"rank{rank}.json", events, rank=rank)
        graph = {"schema": "1.0.1", "pid": 100 + rank, "nodes": [op]}
        (tmp_path / f"et_rank{rank}.json").write_text(json.dumps(graph))
    monkeypatch.setattr("weft.trace.analysis.analyzing.AT_ONCE", 1)
    found = analyze(tmp_path)
    assert [rank.rank for rank in found.ranks] == [0, 1]
    assert found.jobs == ()
    shapes = [use.shape for rank in found.ranks for use in rank.kernel_table if use.shape]
    assert shapes == ["[8, 4] [4, 2] fp32"] * 2


def test_streamed_ranks_are_told_that_their_host_waits(tmp_path, monkeypatch):
    for rank in range(2):
        events = [
            mark(1, 0, 1000),
            launch(1, 1),
            kernel(10, 100, correlation=1),
            event("cudaStreamSynchronize", "cuda_runtime", 100, 500, 1),
            launch(610, 2),
            kernel(620, 300, correlation=2),
            launch(925, 3),
            all_reduce(930, 50, 3),
        ]
        written(tmp_path / f"rank{rank}.json", events, rank=rank)
    monkeypatch.setattr("weft.trace.analysis.analyzing.AT_ONCE", 1)
    titles = [each.title for each in analyze(tmp_path).advice]
    assert "Do not wait for the GPU inside the step" in titles
