"""The quick path of every verb, one after another in one process: a failure names the verb.

Run as a program, so that an environment or an option of Python holds for all of it.
"""

from __future__ import annotations

import json
import sys

from weft.cli import main

QUICK = (
    "--version",
    "doctor",
    "platforms",
    "platforms mi300x-8",
    "collective all_reduce --size 1KiB --on h100-8 --algorithm all",
    "kernel gemm m=1 n=64 k=64 --on h100-8",
    "copies --block 4KiB --count 16 --on mi300x-8",
    "c3 --on mi300x-8 --gemm 256x256x256 --collective all_gather --size 1MiB",
    "predict gpt2 --on h100-8 --ranks 2 --set layers=1 --set batch=2",
    "plan gpt2 --on mi300x-8 --ranks 2 --set layers=1 --set batch=2",
    "shard dlrm --on h100-8 --ranks 2",
    "serve llama-8b --on mi300x-8 --block 8KiB --fetch b2b --hit 0.9",
    "validate broadcast",
)


if __name__ == "__main__":
    codes = {line: main(line.split()) for line in QUICK}
    sys.stderr.write(json.dumps(codes))
