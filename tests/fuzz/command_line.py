"""Command lines out of words: verbs, options, values that fit and values that do not.

Only what asks is called, not what measures this machine: no ``--run``, and of the verbs that
always measure only those that refuse what they are asked.
"""

from __future__ import annotations

SEEDS = (
    b"--help",
    b"--version",
    b"platforms",
    b"platforms mi300x-8 --json",
    b"collective all_reduce --size 1KiB,64KiB --on h100-8 --algorithm all --json",
    b"collective all_gather --size 1MiB --on mi300x-8 --ranks 4 --algorithm dma",
    b"kernel gemm m=1,512 n=64 k=64 dtype=fp16 --on h100-8",
    b"copies --block 4KiB,32KiB --count 16 --on mi300x-8",
    b"c3 --on mi300x-8 --gemm 256x256x256 --collective all_gather --size 1MiB",
    b"predict gpt2 --on h100-8 --ranks 2 --set layers=1 --set batch=2",
    b"plan gpt2 --on mi300x-8 --ranks 2 --set layers=1 --set batch=2",
    b"shard dlrm --on h100-8 --ranks 2 --set batch=64",
    b"serve llama-8b --on mi300x-8 --block 8KiB --fetch b2b --hit 0.9 --requests 2",
    b"analyze nothing.json",
    b"whatif nothing.json --strategy dma",
    b"collective broadcast --size 1KiB --on switch(8)@400GiB/s,936ns",
    b"bench nothing",
    b"validate nothing",
    b"sweep kernel gemm m=1 n=1 k=1 --on nothing",
)
_VERBS = ("platforms", "collective", "kernel", "copies", "c3", "predict", "plan", "shard", "serve")
_VALUES = (
    *(
        "1KiB",
        "0",
        "-1",
        "1e3",
        "1KiB:1MiB",
        "nan",
        "inf",
        "",
        "mi300x-8",
        "h100-8x2",
        "cpu",
        "here",
    ),
    *(
        "ring",
        "auto",
        "all",
        "dma+prelaunch",
        "chain+pack",
        "gemm",
        "m=0",
        "m=-1",
        "m=nan",
        "m=1e400",
    ),
    *(
        "batch=0",
        "layers=0",
        "tp=3",
        "x=y",
        "=",
        "switch(0)@1,1",
        "(",
        "ring(2)@1GB/s",
        "é",
        "\udc80",
    ),
    *(
        "all_to_all",
        "broadcast",
        "bf16",
        "dlrm",
        "llama-8b",
        "a.toml",
        "a.json",
        "-",
        "--",
        "9" * 30,
    ),
)
_OPTIONS = (
    *(
        "--on",
        "--ranks",
        "--size",
        "--algorithm",
        "--set",
        "--json",
        "--strategy",
        "--block",
        "--count",
    ),
    *(
        "--gemm",
        "--collective",
        "--hit",
        "--fetch",
        "--rate",
        "--help",
        "--library",
        "--requests",
        "-h",
    ),
)
WORDS = tuple(
    f" {word} ".encode(errors="surrogateescape") for word in (*_VERBS, *_VALUES, *_OPTIONS)
)
_MEASURES = ("tour", "bench", "calibrate", "validate", "doctor", "sweep", "gpu-check")
_ACTS = ("--run", "-o", "--output", "--again")


def arguments_of(given: bytes) -> list[str] | None:
    """Split into words; None for what would measure, write or start something."""
    words = given.decode(errors="surrogateescape").replace("\0", "").split()
    if any(word.startswith(_ACTS) for word in words):
        return None
    if words and words[0] in _MEASURES and "nothing" not in words and "--help" not in words:
        return None
    return words[:20]
