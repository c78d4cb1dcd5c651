"""The table of all collectives and their algorithms, by name."""

from collections.abc import Callable
from functools import partial
from typing import Any

from weft.collectives import (
    chain,
    compressed_broadcast,
    direct,
    dma_one_host,
    eager,
    halving_doubling,
    hierarchical,
    pull,
    ring,
    staged,
    tree,
)
from weft.collectives.parts import ITEM_BYTES
from weft.errors import UnknownNameError, UsageError, nearest
from weft.hardware import Device
from weft.schedule import Schedule

# By DMA algorithm: the engine features it needs beyond plain copies.
ENGINE_FEATURES: dict[str, tuple[str, ...]] = {}


def _dma(build: Callable[..., Schedule], *features: str) -> dict[str, Callable[..., Schedule]]:
    found: dict[str, Callable[..., Schedule]] = {}
    for ahead in (False, True):
        for feature in features:
            special = feature != "pcpy"
            name = (f"dma-{feature}" if special else "dma") + ("+prelaunch" if ahead else "")
            found[name] = partial(build, feature=feature, prelaunch=ahead)
            ENGINE_FEATURES[name] = (feature,) * special + ("prelaunch",) * ahead
    return found


BUILDERS: dict[str, dict[str, Callable[..., Schedule]]] = {
    "broadcast": {
        "direct": direct.broadcast,
        "pull": pull.broadcast,
        "eager": eager.broadcast,
        "tree": tree.broadcast,
        "binomial": tree.binomial_broadcast,
        "scatter-allgather": chain.scatter_all_gather,
        "chain": chain.broadcast,
        "hierarchical": hierarchical.broadcast,
    },
    "all_gather": {
        "ring": ring.all_gather,
        "direct": direct.all_gather,
        "pull": pull.all_gather,
        "eager": eager.all_gather,
        "staged": staged.all_gather,
        "halving-doubling": halving_doubling.all_gather,
        "hierarchical": hierarchical.all_gather,
        **_dma(dma_one_host.all_gather, "pcpy", "bcst", "b2b"),
    },
    "reduce_scatter": {
        "ring": ring.reduce_scatter,
        "direct": direct.reduce_scatter,
        "pull": pull.reduce_scatter,
        "eager": eager.reduce_scatter,
        "staged": staged.reduce_scatter,
        "halving-doubling": halving_doubling.reduce_scatter,
    },
    "all_reduce": {
        "ring": ring.all_reduce,
        "direct": direct.all_reduce,
        "pull": pull.all_reduce,
        "eager": eager.all_reduce,
        "staged": staged.all_reduce,
        "tree": tree.all_reduce,
        "halving-doubling": halving_doubling.all_reduce,
        "hierarchical": hierarchical.all_reduce,
    },
    "all_to_all": {
        "direct": direct.all_to_all,
        "pull": pull.all_to_all,
        "eager": eager.all_to_all,
        "staged": staged.all_to_all,
        **_dma(dma_one_host.all_to_all, "pcpy", "swap", "b2b"),
    },
    "reduce": {"pull": pull.reduce, "eager": eager.reduce},
    "gather": {"direct": direct.gather, "eager": eager.gather},
    "scatter": {"direct": direct.scatter, "eager": eager.scatter},
    "send_recv": {"direct": direct.send_recv},
    "barrier": {"direct": direct.barrier, "eager": eager.barrier, "tree": tree.barrier},
}
KINDS = tuple(BUILDERS)
ROOTED = ("broadcast", "scatter", "gather", "reduce")
REDUCING = ("all_reduce", "reduce_scatter", "reduce")
SHARED_MEMORY = ("pull", "eager", "staged")  # ranks read the memory of others
MOST_EAGER = 64  # ranks: each reads all others, so commands grow with their square
# Written with a codec after a plus: chain+pack, p2p+int8:64.
COMPRESSED: dict[str, Callable[..., Schedule]] = {
    "chain": compressed_broadcast.chain,
    "p2p": compressed_broadcast.p2p,
}


def algorithms(kind: str) -> tuple[str, ...]:
    """Return the names of the algorithms that exist for ``kind``."""
    if kind not in BUILDERS:
        raise UnknownNameError(f"unknown collective {kind!r}.", nearest(kind, KINDS))
    return tuple(BUILDERS[kind])


def engine_algorithms(kind: str, device: Device) -> tuple[str, ...]:
    """Return the algorithms of ``kind`` that the DMA engines of a device can execute."""
    if device.engine_refusal(kind):
        return ()
    return tuple(
        name
        for name in algorithms(kind)
        if name in ENGINE_FEATURES and not device.feature_refusal(ENGINE_FEATURES[name])
    )


def collective(
    kind: str,
    algorithm: str,
    *,
    num_ranks: int,
    nbytes: int,
    node_size: int | None = None,
    **options: Any,
) -> Schedule:
    """Build the collective ``kind`` by ``algorithm``. ``nbytes`` counts as in nccl-tests.

    That is the vector for broadcast and all_reduce, the total output for all_gather and gather, and
    the total input for reduce_scatter, all_to_all and scatter.
    """
    known = algorithms(kind)
    shape, plus, codec = algorithm.partition("+")
    with_codec = bool(plus) and shape in COMPRESSED and kind == "broadcast"
    if algorithm not in known and not with_codec:
        if any(algorithm in builders for builders in BUILDERS.values()):
            adds = algorithm in ENGINE_FEATURES and "reduce" in kind
            why = ": DMA engines copy, they do not add" if adds else ""
            hint = f"For {kind}: {', '.join(known)}."
            raise UsageError(f"{algorithm!r} does not apply to {kind}{why}.", hint)
        raise UnknownNameError(f"unknown algorithm {algorithm!r}.", nearest(algorithm, known))
    if num_ranks < 2:
        raise UsageError(f"{kind}: num_ranks is {num_ranks}, expected 2 or more.")
    if nbytes < 0:
        raise UsageError(f"{kind}: nbytes is {nbytes}, expected 0 or more.")
    _check_options(kind, num_ranks, options)
    if algorithm == "hierarchical":
        options["node_size"] = node_size or 0
    elif (
        node_size
        and num_ranks > node_size
        and (algorithm in ENGINE_FEATURES or algorithm in SHARED_MEMORY)
    ):
        raise UsageError(
            f"{algorithm} {kind} works inside one node, but {num_ranks} ranks span nodes of "
            f"{node_size}.",
            "Use hierarchical, ring or direct between nodes.",
        )
    if algorithm in ("eager", "staged") and num_ranks > MOST_EAGER:
        raise UsageError(
            f"{algorithm} {kind}: num_ranks is {num_ranks}, expected at most {MOST_EAGER}.",
            "Use pull, direct or ring.",
        )
    build = partial(COMPRESSED[shape], codec=codec) if with_codec else BUILDERS[kind][algorithm]
    return build(num_ranks, nbytes, **options)


def _check_options(kind: str, num_ranks: int, options: dict[str, Any]) -> None:
    root, dtype = options.get("root", 0), options.get("dtype", "uint8")
    if not 0 <= root < num_ranks:
        raise UsageError(
            f"root: rank {root} is out of range ({num_ranks} ranks).", f"Use 0 to {num_ranks - 1}."
        )
    if kind in REDUCING and dtype not in ITEM_BYTES:
        raise UnknownNameError(f"unknown dtype {dtype!r}.", nearest(dtype, ITEM_BYTES))
