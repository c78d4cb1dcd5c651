"""Weight updates from a trainer to several hosts: bytes, time, and the rate of the encoder."""

import time
from collections.abc import Iterator, Sequence
from statistics import median

import numpy as np
from numpy.typing import NDArray

from benchmarks.hosts import on_hosts
from benchmarks.namespaces import NetHost, hosts_on_switch
from benchmarks.rows import Options, Row
from benchmarks.torch_weights import trained_weights
from weft._core import apply_changes, changes_room, check_changes, encode_changes
from weft.torch.weights.weight_layout import PIECE_BYTES

QUESTION = "How long do weights of which few changed take to several hosts, and to encode?"
RECEIVERS = 4  # hosts besides the trainer's
RATE = 1e9 / 8
SIZES = (1 << 30,)
SHARES = (0.01, 0.03)  # of the values that change
# Optimizers with small learning rates move bf16 weights by one unit in the last place; the other
# kind is the worst case: values that have nothing to do with those before.
CHANGES = ("one_ulp", "random")
_AT_ONCE = 1 << 22  # words of which random numbers are drawn: memory for five ranks is scarce
Words = NDArray[np.uint16]


def run(options: Options) -> Iterator[Row]:
    """Encode and decode in this process, then send over links; shares and changes in turn."""
    for nbytes in options.sizes or SIZES:
        for share in SHARES:
            for change in CHANGES:
                yield _coded(nbytes, share, change, options.rounds)
    for rate in options.rates or (RATE,):
        with hosts_on_switch(rate, RECEIVERS + 1) as hosts:
            for nbytes in options.sizes or SIZES:
                yield from _sent(hosts, nbytes, rate, options.rounds)


def count_rows(options: Options) -> int:
    """Return how many rows there will be."""
    sizes, rates = len(options.sizes or SIZES), len(options.rates or (RATE,))
    return sizes * (len(SHARES) * len(CHANGES) + rates * (1 + len(SHARES)))


def bfloat16_weights(nbytes: int) -> Words:
    """Return trained weights as bf16, repeated as often as needed."""
    bits = trained_weights().view(np.uint32)
    words: Words = np.resize((bits >> 16).astype(np.uint16), nbytes // 2)
    return words


def changed_words(words: Words, share: float, change: str, seed: int) -> Words:
    """Return the weights after a step that changes a share of them."""
    rng = np.random.default_rng(seed)
    after: Words = words.copy()
    for at in range(0, len(words), _AT_ONCE):
        part = after[at : at + _AT_ONCE]
        places = np.flatnonzero(rng.random(len(part), np.float32) < share)
        if change == "one_ulp":
            part[places] += rng.choice(np.array([1, 0xFFFF], np.uint16), len(places))
        else:
            part[places] ^= rng.integers(1, 1 << 16, len(places), np.uint16)
    return after


def _coded(nbytes: int, share: float, change: str, rounds: int) -> Row:
    """Encode, check and apply one update, piece by piece, on one core."""
    before = bfloat16_weights(nbytes)
    after = changed_words(before, share, change, 1)
    now, held, words = after.view(np.uint8), before.copy().view(np.uint8), before.view(np.uint8)
    pieces = [slice(at, at + PIECE_BYTES) for at in range(0, nbytes, PIECE_BYTES)]
    out = np.zeros(changes_room(PIECE_BYTES), np.uint8)
    times: dict[str, list[float]] = {"encode": [], "check": [], "apply": []}
    frames: list[NDArray[np.uint8]] = []
    for number in range(rounds + 1):
        frames, seconds = [], dict.fromkeys(times, 0.0)
        for piece in pieces:
            begin = time.perf_counter()
            size = encode_changes(now[piece], held[piece], out, 2)
            encoded = time.perf_counter()
            frames.append(out[:size].copy())
            seconds["encode"] += encoded - begin
        for piece, frame in zip(pieces, frames, strict=True):
            begin = time.perf_counter()
            status = check_changes(frame, words[piece], 2)
            checked = time.perf_counter()
            apply_changes(frame, words[piece], 2)
            seconds["apply"] += time.perf_counter() - checked
            seconds["check"] += checked - begin
            assert status == 0
        assert np.array_equal(words, now)
        if number:  # the first one faults pages in
            for name, each in seconds.items():
                times[name].append(each)
        before = after
        after = changed_words(before, share, change, number + 2)
        now = after.view(np.uint8)
    case = {"what": "codec", "nbytes": nbytes, "dtype": "bfloat16", "changed": share}
    sent = sum(map(len, frames))
    figures = {"ratio": nbytes / sent, "exact": True}
    figures |= {f"{name}_bandwidth": nbytes / median(each) for name, each in times.items()}
    return Row("weight_updates", {**case, "change": change}, tuple(times["encode"]), {}, figures)


def _sent(hosts: Sequence[NetHost], nbytes: int, rate: float, rounds: int) -> Iterator[Row]:
    job = {"what": "updates", "nbytes": nbytes, "shares": SHARES, "rounds": rounds, "pinned": False}
    for each in on_hosts(hosts, 1, job):
        case = {
            "what": "update",
            "nbytes": nbytes,
            "dtype": "bfloat16",
            "changed": each["share"],
            "change": "one_ulp",
            "hosts": RECEIVERS + 1,
            "rate": f"{8 * rate / 1e9:g}gbit",
        }
        figures = {name: each[name] for name in ("wire_bytes", "staged_seconds", "switch_seconds")}
        figures["ratio"] = nbytes / each["wire_bytes"]
        figures["exact"] = each["exact"]
        yield Row("weight_updates", case, tuple(each["seconds"]), {}, figures)
