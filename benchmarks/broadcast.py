"""Broadcasts of trained weights over shaped links, encoded or not, compared with MPI and Gloo."""

import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from statistics import median
from typing import Any, NamedTuple

from benchmarks.broadcast_model import (
    HOP,
    BroadcastSize,
    CodecTimes,
    Hosts,
    encodes_on_each_hop,
)
from benchmarks.launch import PEERS, require_known
from benchmarks.namespaces import hosts_on_switch
from benchmarks.remote_launch import started_on
from benchmarks.rows import Options, Row
from weft.compress import is_lossless
from weft.compress.delta import is_delta
from weft.errors import RunError
from weft.local_runs.contest import ContestEntry, ContestOutcome, compete
from weft.local_runs.rank_team import Team

QUESTION = "How fast do weights reach all hosts, by codec, size and rate of the links?"
HOSTS = 4
RATE = 1e9 / 8
SIZES = (16 << 20, 64 << 20)
_WEFT = "dist"
_SHORT, _SHORT_BYTES = "short", 4096  # a broadcast that is nothing but its start
FAST = 2e9 / 8  # links on which a root tries some lengths of pieces first
_WARM = 10
_MUST_COME = 0.9  # of the bytes of a peer's broadcast: else they came by another way


class Kind(NamedTuple):
    """Something to send, and how."""

    algorithm: str
    data: str = "weights"
    dtype: str = "float32"
    keep_root: bool = False

    @property
    def codec(self) -> str:
        """The codec's name; none where there is none."""
        return self.algorithm.partition("+")[2] or "none"

    def __str__(self) -> str:
        kept = " keep_root" if self.keep_root else ""
        return f"{self.algorithm} {self.data} {self.dtype}{kept}"


KINDS = (
    Kind("chain"),
    Kind("chain+pack"),
    Kind("chain+pack", dtype="bfloat16"),
    Kind("chain+bf16"),
    Kind("chain+int8"),
    Kind("chain+int8", keep_root=True),
    Kind("chain+int4"),
    Kind("chain+pack", "zeros"),
    Kind("chain+pack", "sparse"),
    Kind("chain+delta+pack", "updates"),
    Kind("chain+blosc2:zstd"),
    Kind("chain+zfp:16"),
    Kind("chain+zfp:16", keep_root=True),  # as p2p leaves it
    Kind("p2p+pack"),
    Kind("p2p+int8"),
    Kind("p2p+zfp:16"),
)


def run(options: Options) -> Iterator[Row]:
    """Broadcast every kind from one of four hosts with one rank each, all teams in turn."""
    options = replace(options, against=options.against or PEERS)
    require_known(options.against)
    kinds = _kinds(options.algorithms)
    for rate in options.rates or (RATE,):
        with (
            hosts_on_switch(rate, HOSTS) as hosts,
            started_on(hosts, (_WEFT, *options.against)) as teams,
        ):
            for nbytes in options.sizes or SIZES:
                yield from _one_size(teams, kinds, nbytes, rate, options.rounds)


def count_rows(options: Options) -> int:
    """Return how many rows there will be."""
    sizes, rates = len(options.sizes or SIZES), len(options.rates or (RATE,))
    return sizes * rates * len(_kinds(options.algorithms))


def _kinds(algorithms: Sequence[str]) -> list[Kind]:
    known = dict.fromkeys(kind.algorithm for kind in KINDS)
    require_known(algorithms, known, "algorithm of a broadcast")
    return [kind for kind in KINDS if not algorithms or kind.algorithm in algorithms]


def _one_size(
    teams: dict[str, Team], kinds: Sequence[Kind], nbytes: int, rate: float, rounds: int
) -> Iterator[Row]:
    warm = _WARM if rate > FAST else 1
    cases = {str(kind): {**kind._asdict(), "nbytes": nbytes, "warm": warm} for kind in kinds}
    cases[_SHORT] = {**Kind("chain")._asdict(), "nbytes": _SHORT_BYTES}
    entries = {name: ContestEntry(teams[_WEFT], case) for name, case in cases.items()}
    peers = [name for name in teams if name != _WEFT]
    plain = {"kind": "broadcast", "nbytes": nbytes}
    outcome = compete(entries | {name: ContestEntry(teams[name], plain) for name in peers}, rounds)
    for name in peers:
        _require_sent(name, outcome, nbytes)
    for kind in kinds:
        row = _row(kind, outcome, peers, nbytes, rate)
        row.more.update(_predicted(kind, outcome, nbytes, rate))
        yield row


def _require_sent(peer: str, outcome: ContestOutcome, nbytes: int) -> None:
    """Raise where a peer was wrong, or its bytes did not come by the links."""
    least = min(outcome.received[peer][1:])
    if least < _MUST_COME * nbytes:
        raise RunError(
            f"{peer} broadcast {nbytes} bytes and a host received {least} by its link.",
            "It found another way between the namespaces, such as shared memory.",
        )
    if wrong := outcome.wrong(peer):
        raise RunError(f"{peer} broadcast {wrong} wrong elements.")


def _row(
    kind: Kind, outcome: ContestOutcome, peers: Sequence[str], nbytes: int, rate: float
) -> Row:
    times, name = outcome.times[str(kind)], str(kind)
    case = {
        "collective": "broadcast",
        "algorithm": kind.algorithm.partition("+")[0],
        "codec": kind.codec,
        "data": kind.data,
        "dtype": kind.dtype,
        "nbytes": nbytes,
        "ranks": HOSTS,
        "rate": f"{8 * rate / 1e9:g}gbit",
    }
    if kind.keep_root:
        case["keep_root"] = True
    figures = {**_checked(kind, outcome.answers[name]), "foreign": outcome.foreign}
    figures["wire_bytes"] = max(outcome.received[name][1:])
    figures["line_rates"] = median(times) * rate / nbytes
    figures["piece_bytes"] = outcome.answers[name][-HOSTS].get("piece", 0)
    compared = outcome.peers(peers, name)
    hops = kind._replace(algorithm=f"p2p+{kind.codec}", keep_root=False)
    if hops != kind and str(hops) in outcome.times:
        compared["p2p"] = outcome.compare(str(hops), name)
    return Row("broadcast", case, times, compared, figures)


def _predicted(kind: Kind, outcome: ContestOutcome, nbytes: int, rate: float) -> dict[str, Any]:
    """Predict a broadcast; the plain chain calibrates links and cores, so it has no prediction."""
    plain = str(Kind("chain"))
    if plain not in outcome.times or kind.codec == "none" or is_delta(kind.codec):
        return {}
    start = max(0.0, median(outcome.times[_SHORT]) - (HOSTS - 1) * HOP)
    hosts = Hosts(HOSTS, len(os.sched_getaffinity(0)), rate, start)
    hosts = hosts.calibrated(median(outcome.times[plain]), _sent(plain, outcome, nbytes))
    root = outcome.answers[str(kind)][-HOSTS]
    keeps = kind.keep_root or is_lossless(kind.codec)
    coded = CodecTimes(kind.algorithm, kind.dtype, root["encode"], root["decode"], keeps)
    seconds = hosts.seconds(_sent(str(kind), outcome, nbytes), coded)
    error = seconds / median(outcome.times[str(kind)]) - 1
    return {"predicted_seconds": seconds, "predicted_error": error}


def _sent(name: str, outcome: ContestOutcome, nbytes: int) -> BroadcastSize:
    return BroadcastSize(
        nbytes, max(outcome.received[name][1:]), outcome.answers[name][-HOSTS]["piece"]
    )


def _checked(kind: Kind, answers: list[dict[str, Any]]) -> dict[str, Any]:
    """Raise where ranks do not hold what they should; return the error that they may have."""
    exact = is_lossless(kind.codec)
    everywhere = not (kind.keep_root or encodes_on_each_hop(kind.algorithm))
    for first in range(0, len(answers), HOSTS):
        held = answers[first : first + HOSTS]
        if (everywhere or exact) and len({each["sum"] for each in held}) > 1:
            raise RunError(f"{kind}: ranks do not hold the same bytes.")
    error = max(each["error"] for each in answers)
    if exact and error:
        raise RunError(f"{kind}: what came is not what was sent.")
    return {"error": error}
