"""How the ranks of a job share a transformer: what must divide, and the groups that follow."""

from math import gcd

from weft.errors import UsageError, nearest
from weft.models.transformer import Transformer
from weft.schedule.values import Group

CP_KINDS = ("ring", "allgather", "ulysses")
SCHEDULES = ("1f1b", "gpipe", "zb", "dualpipe")
RECOMPUTE = ("none", "selective", "selective_op", "moe_act", "mla_up_proj", "full")
DISPATCHERS = ("alltoall", "flex")
AT_LEAST_ONE = (
    *("hidden", "layers", "heads", "ffn", "vocab", "seq", "batch", "tp", "pp", "ep", "interleave"),
    *("cp", "moe_every", "bucket"),
)
_MOST_LAYERS = 100_000  # of any model by far; more is a mistake, and takes all memory
MODES = ("train", "prefill", "decode")


class Layout:
    """The groups of ranks, the micro batches and the layers of each chunk of a pipeline.

    ``dp`` counts ranks that have different samples, ``replicas`` those that have the same weights
    (dp times cp), ``shard`` those of them that share weights or optimizer states out. Raises
    UsageError for anything that does not divide.
    """

    def __init__(self, model: Transformer, num_ranks: int) -> None:
        _require_words(model)
        for key in AT_LEAST_ONE:
            if getattr(model, key) < 1:
                raise UsageError(f"{key} must be 1 or more (got {getattr(model, key)})")
        if model.layers > _MOST_LAYERS:
            raise UsageError(
                f"layers: at most {_MOST_LAYERS:,} can be laid out (got {model.layers})",
                "Use fewer layers.",
            )
        inner = model.tp * model.pp * model.cp
        named = f"tp {model.tp} times pp {model.pp}" + (
            f" times cp {model.cp}" if model.cp > 1 else ""
        )
        if num_ranks % inner:
            raise UsageError(
                f"{num_ranks} ranks do not divide into {named} = {inner}",
                f"Use degrees whose product divides {num_ranks}.",
            )
        self.dp = num_ranks // inner
        if model.dp not in (0, self.dp):
            raise UsageError(
                f"{named} times dp {model.dp} is {inner * model.dp} (got {num_ranks} ranks)",
                f"Use --ranks {inner * model.dp}, or --set dp={self.dp}.",
            )
        self.replicas = self.dp * model.cp
        _require_parts(model, self)
        local = model.batch // self.dp
        self.micro = model.micro_batch or (1 if model.pp > 1 else local)
        if local % self.micro:
            raise UsageError(
                f"{local} samples a rank do not divide into batches of {self.micro}",
                f"Use --set batch={max(1, local // self.micro) * self.micro * self.dp}.",
            )
        self.num_micro = local // self.micro
        self.chunks = _chunks(model)
        _require_interleaving(model, self.num_micro)
        _require_dual(model, self)
        self.shard = model.shard or self.replicas
        self.groups = _groups(model, self)
        self._model = model

    def positions(self, stage: int) -> list[int]:
        """Return where in the model the chunks of a stage are: the numbers of ``chunks``."""
        model = self._model
        if model.is_dual:
            return [stage, model.pp - 1 - stage]
        return [stage + model.pp * chunk for chunk in range(model.interleave)]

    def stage_of(self, position: int, chunk: int) -> int:
        """Return the stage that holds a position of the model as its chunk of that number."""
        model = self._model
        if model.is_dual and chunk:
            return model.pp - 1 - position
        return position % model.pp


def _groups(model: Transformer, layout: Layout) -> dict[str, Group]:
    stage = model.tp * layout.replicas  # ranks of one stage
    groups = {
        "tp": Group(model.tp),
        "dp": Group(layout.replicas, model.tp),
        "ep": Group(model.ep, model.expert_tp),
        "pp": Group(model.pp, stage),
        "pp back": Group(model.pp, stage),
    }
    if model.cp > 1:
        groups["cp"] = Group(model.cp, model.tp)
    if model.ep > 1 or model.expert_tp != model.tp:  # ranks that hold the same experts
        each = model.expert_tp * model.ep
        groups["edp"] = Group(stage // each, each)
    if layout.shard < layout.replicas:
        groups["shard"] = Group(layout.shard, model.tp)
        groups["replica"] = Group(layout.replicas // layout.shard, model.tp * layout.shard)
        inside, each = model.tp * layout.shard, model.expert_tp * model.ep
        if "edp" in groups and inside % each == 0:  # else experts are spread over several of them
            groups["expert shard"] = Group(inside // each, each)
            groups["expert replica"] = Group(layout.replicas // layout.shard, inside)
    # the first and the last stage hold the same weights, if one stage does not hold both ends
    if model.tied and model.pp > 1 and not model.is_dual:
        groups["embedding"] = Group(2, stage * (model.pp - 1))
    return groups


def _require_words(model: Transformer) -> None:
    """Raise for unknown values of settings."""
    for key, known in (
        ("mode", MODES),
        ("cp_kind", CP_KINDS),
        ("schedule", SCHEDULES),
        ("recompute", RECOMPUTE),
        ("dispatcher", DISPATCHERS),
    ):
        if getattr(model, key) not in known:
            raise UsageError(
                f"unknown {key} {getattr(model, key)!r}", nearest(getattr(model, key), known)
            )
    if model.zero > 3:
        raise UsageError(f"zero: stages are 0 to 3 (got {model.zero})", "Use --set zero=1.")


def _require_parts(model: Transformer, layout: Layout) -> None:
    """Raise for a batch, heads, experts or layers that the ranks cannot share."""
    dp = layout.dp
    if model.batch < dp:
        raise UsageError(
            f"{dp} data-parallel ranks are more than the {model.batch} samples of a batch",
            f"Use --set batch={dp} or more, or more of tp and pp.",
        )
    if model.batch % dp:
        raise UsageError(
            f"a batch of {model.batch} does not divide among {dp} data-parallel ranks",
            f"Use --set batch={model.batch // dp * dp}.",
        )
    for what, size in (("heads", model.heads), ("ffn", model.ffn)):
        if size % model.tp:
            raise UsageError(
                f"{size} {what} do not divide among tp {model.tp}", _divisors("tp", size)
            )
    kv = model.kv_heads or model.heads
    if kv % model.tp and model.tp % kv:
        raise UsageError(f"{kv} kv_heads do not divide among tp {model.tp}", _divisors("tp", kv))
    if model.experts and not 1 <= model.topk <= model.experts:
        raise UsageError(
            f"topk must be 1 to {model.experts}, the experts (got {model.topk})",
            f"Use --set topk={max(1, min(model.topk, model.experts))}.",
        )
    if _layers_to_share(model) < model.pp and not model.stage_layers:
        raise UsageError(
            f"{model.pp} stages are more than {model.layers} layers",
            f"Use --set pp={model.layers} or less.",
        )
    _require_context(model)
    _require_experts(model, layout)
    if model.shard and layout.replicas % model.shard:
        raise UsageError(
            f"shard {model.shard} does not divide the {layout.replicas} ranks with equal weights",
            _divisors("shard", layout.replicas),
        )


def _require_context(model: Transformer) -> None:
    if model.cp < 2:
        return
    # a causal ring gives every rank one early and one late part, so that all compute as much
    parts = 2 * model.cp if model.causal and model.cp_kind == "ring" else model.cp
    if model.seq % parts:
        raise UsageError(
            f"{model.seq} tokens do not divide into {parts} parts of cp {model.cp}",
            f"Use --set seq={max(1, model.seq // parts) * parts}.",
        )
    if not model.flash or model.mode != "train":
        raise UsageError("cp: only training with flash=true is modelled", "Use --set cp=1.")
    if model.cp_kind == "ulysses" and model.heads // model.tp % model.cp:
        raise UsageError(
            f"{model.heads // model.tp} heads a rank do not divide among cp {model.cp}",
            "Use --set cp_kind=ring, or less of cp or tp.",
        )


def _require_experts(model: Transformer, layout: Layout) -> None:
    if model.expert_tp not in (1, model.tp):
        raise UsageError(f"etp must be 1 or tp {model.tp} (got {model.etp})", "Use --set etp=1.")
    if model.experts and model.expert_width % model.expert_tp:
        raise UsageError(
            f"experts of width {model.expert_width} do not divide among etp {model.expert_tp}",
            "Use --set etp=1.",
        )
    if model.ep == 1:
        return
    holders = model.tp * layout.replicas // model.expert_tp
    if not model.experts or model.experts % model.ep or holders % model.ep:
        raise UsageError(
            f"ep {model.ep} must divide the {model.experts} experts and the {holders} "
            "data-parallel ranks",
            f"Use --set ep={gcd(model.experts, holders) if model.experts else 1}, or a divisor.",
        )


def _require_interleaving(model: Transformer, num_micro: int) -> None:
    if model.overlaps_experts and model.pp > 1 and model.schedule in ("gpipe", "zb"):
        raise UsageError(
            f"schedule {model.schedule}: ep_overlap alternates passes as 1f1b does",
            "Use --set schedule=1f1b, or --set ep_overlap=false.",
        )
    if model.interleave < 2:
        return
    if model.schedule != "1f1b":
        raise UsageError(
            f"schedule {model.schedule} has one chunk a stage (got interleave={model.interleave})",
            "Use --set schedule=1f1b, or interleave=1.",
        )
    too_few = _layers_to_share(model) < model.pp * model.interleave and not model.stage_layers
    if num_micro % model.pp or too_few:
        raise UsageError(
            f"{num_micro} micro batches and {model.layers} layers cannot be interleaved "
            f"{model.interleave} times over {model.pp} stages",
            "Use a multiple of pp micro batches, and a layer for every chunk.",
        )


def _layers_to_share(model: Transformer) -> int:
    """Return how many chunks get a layer, or the embedding or the head where they count as one."""
    return model.layers + (2 if model.count_ends else 0)


def _require_dual(model: Transformer, layout: Layout) -> None:
    if not model.is_dual:
        return
    if model.pp % 2 or layout.num_micro % 2 or layout.num_micro < 2 * model.pp:
        least = 2 * (model.pp + model.pp % 2)
        raise UsageError(
            f"schedule dualpipe: {model.pp} stages and {layout.num_micro} micro batches "
            f"(expected both even, and {least} micro batches or more)",
            f"Use --set batch={least * layout.micro * layout.dp}, or --set schedule=1f1b.",
        )


def _chunks(model: Transformer) -> list[range]:
    """Cut the layers into chunks in model order: chunk c is on stage c mod pp."""
    many = model.pp * model.interleave
    counts = list(model.stage_layers) or split(model.layers, many)
    if model.count_ends and not model.stage_layers:
        counts = split_with_ends(model.layers, many, 1, 1)
    if len(counts) != many or sum(counts) != model.layers:
        raise UsageError(
            f"stage_layers: {len(counts)} counts with {sum(counts)} layers "
            f"(expected {many} with {model.layers})",
            f"Use --set stage_layers={'-'.join(map(str, split(model.layers, many)))}.",
        )
    found, first = [], 0
    for count in counts:
        found.append(range(first, first + count))
        first += count
    return found


def _divisors(key: str, size: int) -> str:
    known = [n for n in range(1, min(size, 1024) + 1) if size % n == 0]
    return f"Use --set {key}=N, N one of {', '.join(map(str, known))}."


def split(total: int, parts: int) -> list[int]:
    """Cut a number into parts, the first ones larger where it does not divide."""
    return [total // parts + (index < total % parts) for index in range(parts)]


def split_with_ends(layers: int, parts: int, first: int, last: int) -> list[int]:
    """Cut layers into parts; ``first`` and ``last`` layers of the outer parts stand for the ends.

    >>> split_with_ends(10, 4, 1, 1)
    [2, 3, 3, 2]
    """
    if parts > layers + first + last:
        raise UsageError(
            f"{layers} layers, and {first} and {last} for the ends, are fewer than {parts} parts",
            "Use fewer stages.",
        )
    counts = split(layers + first + last, parts)
    counts[0] -= first
    counts[-1] -= last
    if min(counts) < 0:
        raise UsageError(
            f"{layers} layers with {first} and {last} for the ends do not make {parts} parts",
            "Use fewer stages, or less that counts as layers at the ends.",
        )
    return counts
