"""How long it takes to gather many small blocks of a KV cache."""

from collections.abc import Iterator

from benchmarks.rows import Options, Row
from weft.local_runs.contest import PeerTiming
from weft.runtime import spawn

QUESTION = "How fast are 4,096 blocks of a KV cache gathered by one prepared schedule?"
BLOCKS = 4096
SIZES = (4 << 10, 8 << 10, 32 << 10)


def run(options: Options) -> Iterator[Row]:
    """Gather blocks of each size, compared with a loop of copies and with one indexed copy."""
    from benchmarks.torch_kv import rank_main

    for size in options.sizes or SIZES:
        ((times, wrong),) = spawn(rank_main, 1, BLOCKS, size, options.rounds)
        mine = times.pop("weft")
        peers = {name: PeerTiming.of(theirs, mine) for name, theirs in times.items()}
        case = {"blocks": BLOCKS, "nbytes": size, "ranks": 1}
        yield Row("kv", case, tuple(mine), peers, {"wrong": wrong})
