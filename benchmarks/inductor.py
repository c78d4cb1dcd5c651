"""How much communication of training graphs stays exposed by Inductor's order and by weft's.

Both are made with one price list and replayed by one model: a compute stream, a stream per group,
buffers of a collective held until it is waited for. weft may use as much memory as Inductor's order
did. ``bound`` is what any order of weft's graph exposes (``benchmarks.overlap_bound``). Reads the
folder that ``WEFT_DATA`` names.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchmarks.machine import data_folder
from benchmarks.rows import Options, Row
from weft.local_runs.contest import PeerTiming

if TYPE_CHECKING:
    from collections.abc import Iterator

QUESTION = "How much communication do Inductor's order and weft's leave exposed?"


def run(options: Options) -> Iterator[Row]:
    """Order each graph by both, without and with Inductor's buckets."""
    from benchmarks.torch_fx_graphs import ordered_by_both, training_graphs
    from weft.torch import runtime_estimator

    del options
    folder = data_folder("fx_graphs") / "fx_graphs"
    kernels = runtime_estimator("h100-8")
    for name in training_graphs(folder):
        for buckets in (False, True):
            found = ordered_by_both(folder, name, kernels, buckets=buckets)
            mine, theirs = found.by_weft, found.by_inductor
            more = {
                "step": mine.seconds,
                "peak": mine.peak,
                "took": found.weft_took,
                "bound": found.bound,
                "inductor_step": theirs.seconds,
                "inductor_peak": theirs.peak,
                "inductor_took": found.inductor_took,
                "basis": "predicted",
            }
            peers = {"inductor": PeerTiming.of([theirs.exposed], [mine.exposed])}
            case = {"graph": name, "buckets": buckets}
            yield Row("inductor", case, (mine.exposed,), peers, more)
