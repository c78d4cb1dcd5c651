"""A rank that looks up by TorchRec's sharded tables over Gloo, in TorchRec's environment."""

import sys
from importlib.metadata import version
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torchrec import EmbeddingBagCollection, EmbeddingBagConfig, KeyedJaggedTensor
from torchrec.distributed.embeddingbag import (
    EmbeddingBagCollectionSharder,
    ShardedEmbeddingBagCollection,
)
from torchrec.distributed.sharding_plan import construct_module_sharding_plan, table_wise
from torchrec.distributed.types import ShardingEnv

from benchmarks.lookups import TURNS, Lookups, lookups_of
from benchmarks.torch_lookups import Bags, LookupRunner
from weft.local_runs.torch_joining import answer_until_told, join


class Sharded(LookupRunner):
    """TorchRec's tables, each whole on one rank.

    It takes a rank's own samples and sends indices to the holders first. That is done before
    anything is timed: the others are given indices at the holders, too.
    """

    def __init__(self, lookups: Lookups, rank: int, num_ranks: int) -> None:
        super().__init__(lookups, rank, num_ranks)
        self._sharded = _sharded(lookups, num_ranks)
        self._inputs = [self._distributed(turn, rank, num_ranks) for turn in range(TURNS)]

    def rows(self, bags: Bags) -> Tensor:
        """Look up and exchange."""
        turn = next(turn for turn in range(TURNS) if self.turns[turn] is bags)
        with torch.no_grad():
            found = self._sharded.compute_and_output_dist(*self._inputs[turn])
            rows: Tensor = found.wait().values()
        return rows

    def _distributed(self, turn: int, rank: int, num_ranks: int) -> tuple[Any, Any]:
        """Bring the indices of this rank's samples to the holders of their tables."""
        lookups = self.lookups
        share = lookups.batch // num_ranks
        mine = slice(rank * share * lookups.pooling, (rank + 1) * share * lookups.pooling)
        values = [lookups.indices(table, turn)[mine] for table in range(lookups.tables)]
        given = KeyedJaggedTensor.from_lengths_sync(
            keys=[f"f{table}" for table in range(lookups.tables)],
            values=torch.cat([torch.from_numpy(each) for each in values]),
            lengths=torch.full((lookups.tables * share,), lookups.pooling),
        )
        context = self._sharded.create_context()
        return context, self._sharded.input_dist(context, given).wait().wait()


def _sharded(lookups: Lookups, num_ranks: int) -> Any:
    """Make TorchRec's module and fill the tables of this rank."""
    holders = [r for r in range(num_ranks) for _ in lookups.held(r, num_ranks)]
    device = torch.device("cpu")
    collection = EmbeddingBagCollection(
        device=torch.device("meta"),
        tables=[
            EmbeddingBagConfig(
                name=f"t{table}",
                embedding_dim=lookups.dim,
                num_embeddings=lookups.rows,
                feature_names=[f"f{table}"],
            )
            for table in range(lookups.tables)
        ],
    )
    plan = construct_module_sharding_plan(
        collection,
        {f"t{table}": table_wise(rank=holder) for table, holder in enumerate(holders)},
        sharder=EmbeddingBagCollectionSharder(),
        local_size=num_ranks,
        world_size=num_ranks,
        device_type="cpu",
    )
    env = ShardingEnv.from_process_group(dist.group.WORLD)
    module = ShardedEmbeddingBagCollection(collection, plan, env, device=device)
    for name, shard in module.state_dict().items():
        table = int(name.split(".t")[-1].split(".")[0])
        for local in shard.local_shards():
            local.tensor.copy_(torch.from_numpy(lookups.values(table)))
    return module


class TorchrecRank:
    """One process of a Gloo group."""

    def __init__(self) -> None:
        self.rank = dist.get_rank()
        self.about = f"torchrec {version('torchrec')}, torch {torch.__version__} gloo"

    def barrier(self) -> None:
        """Wait for the other ranks."""
        dist.barrier()

    def open(self, case: dict[str, Any]) -> Sharded:
        """Make the tables of this rank."""
        return Sharded(lookups_of(case), self.rank, dist.get_world_size())


if __name__ == "__main__":
    join("gloo")
    answer_until_told(sys.argv[1], TorchrecRank())
