"""Windows of a running job: joined stamps, journals, and Prometheus' text."""

import os
import tempfile
import time
import urllib.error
import urllib.request

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.trace.events import job
from weft.cli import main
from weft.errors import FormatError, UsageError
from weft.trace import analyze
from weft.trace.live.job_window import (
    KINDS,
    STAMP,
    JobJoiner,
    StampBatch,
    decode_batch,
    encode_batch,
    group_number,
)
from weft.trace.live.prometheus import MetricsServer, metrics_text
from weft.trace.live.window_journal import (
    JournalReader,
    append_window,
    journal_folder,
    new_journal,
)

GROUP = group_number("0")
REDUCE = KINDS.index("all_reduce")


def batch(rank, rows, *, size=2, host="a", **more):
    stamps = np.array(
        [(GROUP, n, REDUCE, 64, s, e, busy, idle) for n, s, e, busy, idle in rows], STAMP
    )
    return StampBatch(rank, host, stamps.tobytes(), {GROUP: ("0", list(range(size)))}, [], **more)


def window(*batches, size=2, now=0.0):
    joiner = JobJoiner(size, interval=1.0)
    for each in batches:
        joiner.add(decode_batch(encode_batch(each)), 0.0)
    return joiner.window(now, 1.0)


def test_the_late_rank_and_its_reason_are_named():
    slow = [(n, 1000 * n + 700, 1000 * n + 900, 100, 600) for n in range(5)]
    fast = [(n, 1000 * n + 200, 1000 * n + 900, 100, 100) for n in range(5)]
    found = window(batch(0, fast), batch(1, slow))
    late = found.stragglers[0]
    assert (late.rank, late.num_last, late.num_collectives) == (1, 5, 5)
    assert late.cost == pytest.approx(5 * 500e-9)
    assert "host was late" in late.why
    computes = [(n, s, e, busy + 500, 100) for n, s, e, busy, _ in slow]
    assert "kernels took" in window(batch(0, fast), batch(1, computes)).stragglers[0].why


def test_the_live_definitions_are_those_of_analyze(tmp_path):
    analysis = analyze(job(tmp_path, (100.0, 400.0, 250.0), clocks=(0.0,) * 3, steps=4))
    stamps = []
    for rank in analysis.ranks:
        rows = [
            (n, round(use.start * 1e9), round((use.start + use.seconds) * 1e9), 0, 0)
            for n, use in enumerate(rank.collectives)
        ]
        stamps.append(batch(rank.rank, rows, size=3))
    found = window(*stamps, size=3)
    for mine, theirs in zip(found.ranks, analysis.ranks, strict=True):
        assert mine.waiting == pytest.approx(theirs.total.waiting, rel=1e-3)
        assert mine.moving == pytest.approx(theirs.total.moving, rel=1e-3)
    worst, late = found.stragglers[0], analysis.stragglers[0]
    assert (worst.rank, worst.num_last) == (late.rank, late.num_last)
    assert worst.cost == pytest.approx(late.cost, rel=1e-3)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 99), st.integers(0, 99)), min_size=1, max_size=8))
def test_waiting_and_moving_fit_into_the_time_of_a_rank(starts):
    rows = [
        [(n, 1000 * n + both[r], 1000 * n + 100 + max(both), 0, 0) for n, both in enumerate(starts)]
        for r in range(2)
    ]
    found = window(*(batch(rank, mine) for rank, mine in enumerate(rows)))
    for rank, mine in zip(found.ranks, rows, strict=True):
        total = sum(end - start for _, start, end, _, _ in mine) * 1e-9
        assert rank.waiting + rank.moving == pytest.approx(total)
    assert sum(rank.cost for rank in found.ranks) == pytest.approx(
        sum(rank.waiting for rank in found.ranks)
    )


def test_collectives_wait_for_ranks_that_have_not_reported_them():
    joiner = JobJoiner(2, 1.0)
    joiner.add(batch(0, [(1, 0, 10, 0, 0), (2, 20, 30, 0, 0)]), 0.0)
    joiner.add(batch(1, [(1, 5, 10, 0, 0)]), 0.0)
    assert joiner.window(0.5, 1.0).ranks[0].num_collectives == 1
    joiner.add(batch(1, [(2, 25, 30, 0, 0)]), 1.0)
    assert joiner.window(1.0, 1.0).ranks[0].num_collectives == 1


def test_a_window_with_the_collectives_of_two_lasts_as_long_as_they_did():
    second = 1_000_000_000
    rows = [(n, n * second, (n + 1) * second, 0, 0) for n in range(5)]
    joiner = JobJoiner(2, 1.0)
    for rank in range(2):
        joiner.add(batch(rank, rows[:1]), 0.0)
    assert joiner.window(1.0, 1.0).seconds == 1.0
    joiner.add(batch(0, rows[1:3]), 3.0)  # rank 1 comes late
    assert joiner.window(3.0, 2.0).ranks[0].num_collectives == 0
    joiner.add(batch(0, rows[3:]), 5.0)
    joiner.add(batch(1, rows[1:]), 5.0)
    found = joiner.window(5.0, 2.0)
    assert found.seconds == 4.0
    assert found.ranks[0].moving <= found.seconds


def test_a_rank_that_dies_is_silent_and_the_others_go_on():
    joiner = JobJoiner(3, 1.0)
    for rank in range(3):
        joiner.add(batch(rank, [(1, 0, 10, 0, 0)], size=3), 0.0)
    joiner.window(0.5, 1.0)
    for rank in range(2):
        joiner.add(batch(rank, [(2, 20 + rank, 30, 0, 0)], size=3), 9.0)
    found = joiner.window(9.0, 8.5)
    assert [rank.rank for rank in found.silent] == [2]
    assert found.ranks[0].num_collectives == 1
    assert "rank 2 has been silent" in found.sentences()[-1]


def test_clocks_of_other_hosts_are_moved_to_the_first():
    there = [(n, 10**15 + 1000 * n + 700, 10**15 + 1000 * n + 900, 0, 0) for n in range(5)]
    here = [(n, 1000 * n + 200, 1000 * n + 900, 0, 0) for n in range(5)]
    found = window(batch(0, here), batch(1, there, host="b"))
    assert found.ranks[0].waiting == pytest.approx(2.5e-6, rel=1e-3)


def test_old_stamps_are_dropped_and_counted():
    joiner = JobJoiner(2, 1.0)
    joiner.add(batch(0, [(n, n, n + 1, 0, 0) for n in range(5000)], dropped=7), 0.0)
    assert joiner.window(0.0, 1.0).dropped == 5000 - 4096 + 7


def test_a_damaged_batch_is_one_line():
    with pytest.raises(FormatError):
        decode_batch(b"\x93\x01")
    with pytest.raises(FormatError):
        decode_batch(encode_batch(StampBatch(0, "a", b"odd", {}, [])))


def test_metrics_are_prometheus_text():
    found = window(batch(0, [(1, 0, 10, 0, 0)], host='a"\\'), batch(1, [(1, 5, 10, 0, 0)]))
    text = metrics_text(found)
    assert 'weft_rank_waiting_seconds{rank="0",host="a\\"\\\\"} 5e-09' in text
    assert 'weft_collective_count{kind="all_reduce",bytes="64",ranks="2"} 1' in text
    assert metrics_text(None).endswith("weft_up 0\n")
    names = [line.split()[2] for line in text.splitlines() if line.startswith("# TYPE")]
    assert len(names) == len(set(names))


def test_the_endpoint_serves_metrics_and_a_used_port_is_refused():
    server = MetricsServer(0, lambda: None)
    try:
        url = f"http://127.0.0.1:{server.port}"
        with urllib.request.urlopen(f"{url}/metrics", timeout=10) as answer:
            assert answer.read().decode() == metrics_text(None)
        with pytest.raises(urllib.error.HTTPError):
            urllib.request.urlopen(f"{url}/other", timeout=10)
        with pytest.raises(UsageError, match="cannot listen"):
            MetricsServer(server.port, lambda: None)
    finally:
        server.close()


def test_watch_shows_the_last_window_of_a_journal(tmp_path, capsys):
    path = tmp_path / "job.jsonl"
    assert main(["watch", str(path), "--once"]) == 2
    path.write_bytes(b"")
    assert main(["watch", str(path), "--once"]) == 2
    slow = window(batch(0, [(1, 0, 10, 0, 0)]), batch(1, [(1, 5, 10, 0, 9)]))
    append_window(path, slow)
    with path.open("ab") as file:
        file.write(b'{"time": 1')  # still being written
    assert main(["watch", str(path), "--once"]) == 0
    assert "slowest is rank 1" in capsys.readouterr().out
    (read,) = JournalReader(path).new()
    assert asdict_of(read) == asdict_of(slow)
    path.write_text("no journal\n")
    assert main(["watch", str(path), "--once"]) == 2
    assert main(["watch", str(path), "--once", "--for", "0"]) == 2


def test_watch_says_that_a_window_is_old(tmp_path, capsys):
    path = tmp_path / "job.jsonl"
    made = window(batch(0, [(1, 0, 10, 0, 0)]), batch(1, [(1, 5, 10, 0, 9)]))
    for age, old in ((0.0, False), (3600.0, True)):
        append_window(path, msgspec.structs.replace(made, time=time.time() - age))
        assert main(["watch", str(path), "--once"]) == 0
        told = " ".join(capsys.readouterr().out.split())
        assert ("ago: the job has ended, or its rank 0 is stuck" in told) == old
        assert main(["watch", str(path), "--once", "--json"]) == 0
        assert len(capsys.readouterr().out.splitlines()) == 1


def asdict_of(found):
    return [(rank.rank, rank.waiting, rank.cost) for rank in found.ranks], found.seconds


def test_a_file_of_something_else_is_no_journal(tmp_path):
    path = tmp_path / "notes.txt"
    path.write_text("hello")
    with pytest.raises(FormatError, match="not a journal"):
        list(JournalReader(path).new())


@pytest.mark.parametrize(
    "line",
    [
        b'{"time":"\xff"}',
        b'{"x":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b"\0" * 100,
        b'{"time":1,"seconds":1,"world_size":1,"ranks":[],"kinds":[],"weft_monitor":2}',
    ],
    ids=["no utf-8", "deep", "zeros", "version"],
)
def test_a_hostile_line_of_a_journal_is_one_error(line, tmp_path):
    path = tmp_path / "job.jsonl"
    path.write_bytes(line + b"\n")
    with pytest.raises(FormatError):
        list(JournalReader(path).new())


def test_a_journal_that_starts_again_is_read_from_its_beginning(tmp_path):
    path = tmp_path / "job.jsonl"
    found = window(batch(0, [(1, 0, 10, 0, 0)]), batch(1, [(1, 5, 10, 0, 9)]))
    for _ in range(3):
        append_window(path, found)
    reader = JournalReader(path)
    assert len(list(reader.new())) == 3
    path.write_bytes(b"")  # as a job that was started again does
    append_window(path, found)
    assert len(list(reader.new())) == 1


@pytest.mark.timeout(20)
def test_a_pipe_is_no_journal(tmp_path):
    path = tmp_path / "pipe"
    os.mkfifo(path)
    with pytest.raises(FormatError, match="regular file"):
        list(JournalReader(path).new())


def test_a_folder_of_journals_that_is_a_link_is_not_written_to(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    assert new_journal().parent.is_dir()
    journal_folder().rmdir()
    (tmp_path / "elsewhere").mkdir()
    journal_folder().symlink_to(tmp_path / "elsewhere")
    with pytest.raises(PermissionError):
        new_journal()


def test_times_in_metrics_have_all_their_digits():
    end = window(batch(0, [])).time
    text = metrics_text(msgspec.structs.replace(window(batch(0, [])), time=end))
    (line,) = [line for line in text.splitlines() if line.startswith("weft_window_end_seconds ")]
    assert float(line.split()[1]) == pytest.approx(end, abs=1e-3)


def test_steps_and_drops_of_a_window_without_collectives_are_those_of_the_next():
    joiner = JobJoiner(2, interval=10.0)
    joiner.add(msgspec.structs.replace(batch(0, [], dropped=3), steps=[0, 10**9]), 0.0)
    assert not joiner.window(0.0, 1.0).kinds
    joiner.add(msgspec.structs.replace(batch(0, [(1, 0, 10, 0, 0)]), steps=[2 * 10**9]), 0.0)
    joiner.add(batch(1, [(1, 5, 10, 0, 0)]), 0.0)
    found = joiner.window(0.0, 1.0)
    assert (found.ranks[0].steps, found.ranks[0].step_seconds, found.dropped) == (2, 1.0, 3)
    assert joiner.window(0.0, 1.0).ranks[0].steps == 0


def test_the_first_window_waits_for_ranks_that_start_later():
    rows = [(n, 1000 * n + 200, 1000 * n + 900, 0, 0) for n in range(1, 5)]
    joiner = JobJoiner(3, 1.0)
    for rank in range(2):
        joiner.add(batch(rank, rows, size=3), 0.0)
    assert joiner.window(0.0, 1.0).kinds == []
    joiner.add(batch(2, rows, size=3), 0.5)
    (kind,) = joiner.window(1.0, 1.0).kinds
    assert (kind.num_ranks, kind.count) == (3, 4)


def test_a_rank_that_never_starts_is_not_waited_for_forever():
    joiner = JobJoiner(3, 1.0)
    for now in (0.0, 9.0):
        for rank in range(2):
            joiner.add(batch(rank, [(int(now) + 1, 200, 900, 0, 0)], size=3), now)
        kinds = joiner.window(now, 1.0).kinds
    assert [kind.num_ranks for kind in kinds] == [2]


def test_waiting_in_groups_of_different_hosts_counts_once():
    """Rank 1 waits in two groups at once; the clock of its host is a second ahead of rank 0's."""
    second = 1_000_000_000
    other = group_number("1")
    groups = {GROUP: ("0", [0, 1]), other: ("1", [1, 2])}

    def stamped(rank, host, *rows):
        stamps = np.array([(group, 1, REDUCE, 64, s, e, 0, 0) for group, s, e in rows], STAMP)
        return StampBatch(rank, host, stamps.tobytes(), groups, [])

    joiner = JobJoiner(3, 1.0)
    joiner.add(stamped(0, "a", (GROUP, 700, 900)), 0.0)
    rows = [(group, second + 200, second + 900) for group in (GROUP, other)]
    joiner.add(stamped(1, "b", *rows), 0.0)
    joiner.add(stamped(2, "b", (other, second + 700, second + 900)), 0.0)
    assert joiner.window(0.0, 1.0).ranks[1].waiting == pytest.approx(500e-9, rel=1e-2)
