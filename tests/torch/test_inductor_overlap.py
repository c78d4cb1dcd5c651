"""Inductor's overlap scheduler takes weft's prices, and weft's own pass orders its graphs."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytestmark = [pytest.mark.torch, pytest.mark.timeout(120)]

# In a process of its own: a fake process group is the default group of a whole process.
PROGRAM = '''
import torch, torch.distributed as dist
from torch import fx
from torch._inductor.fx_passes import node_runtime_estimation, overlap_scheduling as inductor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.testing._internal.distributed.fake_pg import FakeStore
from unittest import mock
from weft.torch.apply.inductor_overlap import runtime_estimator, overlap_graph, schedule_overlap

dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=8)
c10d = torch.ops._c10d_functional
group = dist.group.WORLD.group_name

def made(rows, shards=3):
    """Products with gathered weights, each gather right before its product."""
    graph, fake = fx.Graph(), FakeTensorMode()
    def add(node, *shape):
        with fake:
            node.meta["val"] = torch.empty(shape, dtype=torch.bfloat16)
        return node
    x = add(graph.placeholder("x"), rows, 4096)
    weights = [add(graph.placeholder(f"w{n}"), 512, 4096) for n in range(shards)]
    for weight in weights:
        gathered = add(
            graph.call_function(c10d.all_gather_into_tensor.default, (weight, 8, group)), 4096, 4096
        )
        waited = graph.call_function(c10d.wait_tensor.default, (gathered,))
        waited.meta["val"] = gathered.meta["val"]
        x = add(graph.call_function(torch.ops.aten.mm.default, (x, waited)), rows, 4096)
    graph.output((x,))
    return fx.GraphModule(torch.nn.Module(), graph)

prices = runtime_estimator("h100-8")
gm = made(8192)
graph = overlap_graph(gm, prices)
assert sum(node.comm for node in graph.nodes) > 0
before = graph.replay(range(len(graph.nodes)))
names = [n.name for n in gm.graph.nodes if n.op == "call_function"]
schedule_overlap(gm, prices, max_memory=1 << 40)
after = overlap_graph(gm, prices)
found = after.replay(range(len(after.nodes)))
assert found.exposed < 0.5 * before.exposed, (found, before)
assert [n.name for n in gm.graph.nodes if n.op == "call_function"] != names

def starts(gm):
    order = [n.target for n in gm.graph.nodes if n.op == "call_function"]
    first = order.index(torch.ops.aten.mm.default)
    return order[:first].count(c10d.all_gather_into_tensor.default)

asked = []
def priced(times):
    def estimate(node, size=None):
        asked.append(node.name)
        found = prices(node, size)
        return found if found is None or "gather" not in node.name else found * times
    return estimate

counts = []
for times in (0.01, 1.0, 30.0):
    with mock.patch.object(inductor, "estimate_roofline_runtime_ms", return_value=0.0), \\
         mock.patch.object(node_runtime_estimation, "_log_compute_estimations", return_value=None):
        theirs = inductor.schedule_overlap_bucketing(
            made(8192, 6), custom_runtime_estimation=priced(times), compute_estimator="analytical",
            collective_bucketing=False, pre_bucketing_fsdp_collectives=False,
            max_memory_increase_gb=16.0,
        )
    counts.append(starts(theirs))
assert starts(made(8192, 6)) == 1
assert len(set(counts)) > 1, counts  # how far gathers are moved ahead follows their price
assert any("gather" in name for name in asked)
print("done")
'''


def test_the_order_of_a_graph_changes_as_priced():
    found = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=100, check=False
    )
    assert found.stdout.strip().endswith("done"), found.stderr[-3000:]
