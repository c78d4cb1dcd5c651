"""TorchRec's planner on the tables of a file: started in an environment that has it."""

import json
import sys
import time
from pathlib import Path
from typing import Any

import torch
from torchrec import EmbeddingBagCollection, EmbeddingBagConfig
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.planner import EmbeddingShardingPlanner, Topology
from torchrec.distributed.planner.types import ParameterConstraints

_NODE = 8  # ranks of a node


def plan(job: dict[str, Any]) -> dict[str, Any]:
    """Place the tables with TorchRec; return its seconds and shards."""
    tables = job["tables"]
    collection = EmbeddingBagCollection(
        device=torch.device("meta"),
        tables=[
            EmbeddingBagConfig(
                name=table["name"],
                embedding_dim=table["dim"],
                num_embeddings=table["rows"],
                feature_names=[f"feature_{table['name']}"],
            )
            for table in tables
        ],
    )
    planner = EmbeddingShardingPlanner(
        topology=Topology(
            world_size=job["ranks"],
            compute_device="cuda",
            local_world_size=min(_NODE, job["ranks"]),
            hbm_cap=job["memory"],
        ),
        batch_size=job["batch"] // job["ranks"],
        constraints={
            table["name"]: ParameterConstraints(pooling_factors=[table["pooling"]])
            for table in tables
        },
    )
    begin = time.perf_counter()
    found = planner.plan(collection, [EmbeddingBagCollectionSharder()])
    seconds = time.perf_counter() - begin
    return {"seconds": seconds, "shards": list(_shards(found))}


def _shards(found: Any) -> Any:
    for module in found.plan.values():
        for name, each in module.items():
            for shard in each.sharding_spec.shards:
                rows, dim = shard.shard_sizes
                yield {"name": name, "rows": rows, "dim": dim, "rank": shard.placement.rank()}


if __name__ == "__main__":
    Path(sys.argv[2]).write_text(
        json.dumps(plan(json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")))),
        encoding="utf-8",
    )
