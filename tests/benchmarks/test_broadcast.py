"""What the benchmark of broadcasts measures, and what it does not let pass."""

import os
import signal
import subprocess
import sys
import time

import pytest

from benchmarks import broadcast, namespaces
from benchmarks.broadcast import (
    KINDS,
    Kind,
    _checked,
    _kinds,
    _predicted,
    _require_sent,
    _row,
    count_rows,
)
from benchmarks.broadcast_model import BroadcastSize, CodecTimes, Hosts
from benchmarks.rows import Options
from weft.errors import RunError, UnknownNameError
from weft.local_runs.contest import ContestOutcome

SIZE = 1 << 20


def outcome(**received):
    times: dict[str, tuple[float, ...]] = dict.fromkeys(received, (0.02, 0.01, 0.03))
    return ContestOutcome(times, {name: [0] * 8 for name in received}, 0.0, received)


def test_only_what_is_asked_for_is_measured():
    assert {kind.algorithm for kind in _kinds(["chain", "p2p+pack"])} == {"chain", "p2p+pack"}
    assert count_rows(Options(sizes=(1, 2), rates=(1.0,))) == 2 * len(KINDS)
    with pytest.raises(UnknownNameError, match="p2p\\+pak"):
        _kinds(["p2p+pak"])


def test_a_peer_whose_bytes_did_not_come_by_the_link_is_refused():
    _require_sent("mpich", outcome(mpich=[0, SIZE, SIZE, SIZE]), SIZE)
    with pytest.raises(RunError, match="mpich broadcast 1048576 bytes and a host received 12"):
        _require_sent("mpich", outcome(mpich=[0, SIZE, 12, SIZE]), SIZE)


def test_a_peer_that_is_wrong_is_refused():
    wrong = ContestOutcome({"gloo": (1.0,)}, {"gloo": [0, 3]}, 0.0, {"gloo": [0, SIZE]})
    with pytest.raises(RunError, match="3 wrong"):
        _require_sent("gloo", wrong, SIZE)


def answers(*sums, error=0.0):
    return [{"sum": each, "error": error} for each in sums]


def test_ranks_must_hold_the_same_bytes_and_lossless_ones_the_roots():
    assert _checked(Kind("chain+int8"), answers(5, 5, 5, 5, error=0.01)) == {"error": 0.01}
    assert _checked(Kind("p2p+int8"), answers(4, 5, 6, 7, error=0.01)) == {"error": 0.01}
    with pytest.raises(RunError, match="same bytes"):
        _checked(Kind("chain+int8"), answers(5, 5, 5, 6))
    with pytest.raises(RunError, match="not what was sent"):
        _checked(Kind("p2p+pack"), answers(5, 5, 5, 5, error=1e-9))


def test_a_row_has_the_case_and_the_bytes_on_the_wire():
    kind = Kind("chain+delta+pack", "updates")
    found = outcome(**{str(kind): [9, 100, 90, 80], "gloo": [0, SIZE, SIZE, SIZE]})
    found.answers[str(kind)] = answers(1, 1, 1, 1)
    row = _row(kind, found, ["gloo"], SIZE, 1e9 / 8)
    wanted = {"algorithm": "chain", "codec": "delta+pack", "data": "updates", "rate": "1gbit"}
    assert wanted.items() <= row.case.items()
    assert row.more["wire_bytes"] == 100
    assert row.more["line_rates"] == pytest.approx(0.02 * 125e6 / SIZE)
    assert row.peers["gloo"].ratio == 1


def test_a_chain_is_compared_with_the_same_codec_hop_by_hop():
    chain, hops = Kind("chain+int8", keep_root=True), Kind("p2p+int8")
    found = outcome(**{str(kind): [0, 9, 9, 9] for kind in (chain, hops)})
    found.answers.update({str(kind): answers(1, 1, 1, 1) for kind in (chain, hops)})
    assert _row(chain, found, [], SIZE, 1e9 / 8).peers["p2p"].ratio == 1
    assert _row(hops, found, [], SIZE, 1e9 / 8).peers == {}


def answered(piece, encode=0.0, decode=0.0):
    return [{"piece": piece, "encode": encode, "decode": decode}, {}, {}, {}]


def test_a_plain_chain_calibrates_the_prediction_of_the_others():
    plain, coded, hops = Kind("chain"), Kind("chain+int8"), Kind("p2p+int8")
    line = SIZE / 125e6
    received = {str(kind): [0, *[SIZE // 4] * 3] for kind in (coded, hops)}
    received[str(plain)] = [0, *[SIZE] * 3]
    times: dict[str, tuple[float, ...]] = dict.fromkeys(received, (0.5 * line,))
    times |= {str(plain): (1.2 * line,), "short": (1e-3,)}
    answers = {str(plain): answered(SIZE // 8)}
    answers |= {str(kind): answered(SIZE // 4, 1e-4, 1e-4) for kind in (coded, hops)}
    found = ContestOutcome(times, answers, 0.0, received)
    figures = _predicted(coded, found, SIZE, 125e6)
    assert line / 4 < figures["predicted_seconds"] < line
    assert figures["predicted_error"] == figures["predicted_seconds"] / (0.5 * line) - 1
    assert _predicted(hops, found, SIZE, 125e6)["predicted_seconds"] > 0
    assert _predicted(plain, found, SIZE, 125e6) == {}
    assert _predicted(Kind("chain+delta+pack", "updates"), found, SIZE, 125e6) == {}


MOVED = BroadcastSize(16 * SIZE, 16 * SIZE, SIZE // 8)
PLAIN = CodecTimes("chain+none", "float32")


def test_hosts_foretell_the_chain_they_were_calibrated_by_whatever_its_limit():
    slow = Hosts(4, 2, 125e6, 1e-3).calibrated(0.15, MOVED)
    assert slow.seconds(MOVED, PLAIN) == pytest.approx(0.15, rel=0.01)
    assert slow.rate < 125e6
    fast = Hosts(4, 2, 1.25e9, 1e-3).calibrated(0.09, MOVED)
    assert fast.seconds(MOVED, PLAIN) == pytest.approx(0.09, rel=0.01)
    assert fast.rate == 1.25e9


def test_cores_that_hosts_share_are_the_limit_of_a_slow_codec():
    hosts, sent = Hosts(4, 2, 125e6), BroadcastSize(16 * SIZE, 8 * SIZE, SIZE)
    chain = CodecTimes("chain+zfp:16", "float32", 0.1, 0.2, keep_root=False)
    least = (0.1 + 4 * 0.2) / 2
    assert hosts.seconds(sent, chain) > least
    kept = hosts.seconds(sent, chain._replace(keep_root=True))
    hops = hosts.seconds(sent, chain._replace(algorithm="p2p+zfp:16"))
    assert kept < hosts.seconds(sent, chain)
    assert kept < hops


def test_without_root_it_says_so(monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(RunError, match="need root"):
        list(broadcast.run(Options()))


SCRIPT = """
import time
from benchmarks.namespaces import hosts_on_switch
with hosts_on_switch(1e8, 3) as hosts:
    print(hosts[0].name, flush=True)
    time.sleep(60)
"""


@pytest.mark.netns
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_namespaces_go_with_an_interrupted_run(number):
    process = subprocess.Popen([sys.executable, "-c", SCRIPT], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    name = process.stdout.readline().strip()
    try:
        assert name in listed()
        process.send_signal(number)
        process.wait(20)
    finally:
        process.kill()
        process.communicate()
    deadline = time.monotonic() + 10
    while name in listed() and time.monotonic() < deadline:
        pass
    assert name not in listed()


def listed():
    command = ["ip", "netns", "list"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def test_a_signal_that_ends_is_an_exception_only_meanwhile():
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(SystemExit), namespaces._ended_by_signal():
        signal.raise_signal(signal.SIGTERM)
    assert signal.getsignal(signal.SIGTERM) is before
