"""Measured servers: time to the first token and between tokens, read where the table lies."""

import csv
import gzip
from collections import defaultdict
from dataclasses import dataclass, replace
from functools import cache
from math import inf
from pathlib import Path
from random import Random
from typing import NamedTuple

from validation.splits import SERVING
from weft.errors import WeftError
from weft.hardware import platform
from weft.models.named import transformer_of
from weft.models.transformer import Transformer
from weft.serving import BatchLimits, Load, Question, Server, find_server


class Checkpoint(NamedTuple):
    """A model as it is published: the dtype of all products, or of experts, where it has one.

    ``kv_dtype`` is that of the cache where launch scripts of InferenceMAX set it for all servers.
    """

    name: str
    kind: str
    math: str = ""
    expert_math: str = ""
    kv_dtype: str = ""


# Block scales and 4-bit experts are those of the checkpoints' config.json; Hopper has no units for
# four bits, so such weights are widened before they are multiplied.
MODELS = {
    "Qwen/Qwen3-32B": Checkpoint("qwen3-32b", "dense"),
    "meta-llama/Llama-3.1-8B-Instruct": Checkpoint("llama-3.1-8b", "dense"),
    "nvidia/Llama-3.1-8B-Instruct-FP8": Checkpoint("llama-3.1-8b", "dense"),
    "meta-llama/Llama-3.1-70B": Checkpoint("llama-3.1-70b", "dense", kv_dtype="fp8"),
    "Qwen/Qwen3-235B-A22B-FP8": Checkpoint("qwen3-235b-a22b", "experts", "fp8_block"),
    "MiniMaxAI/MiniMax-M2.5": Checkpoint("minimax-m2", "experts", "fp8_block"),
    "openai/gpt-oss-120b": Checkpoint("gpt-oss-120b", "experts", "bf16", "int4_wo"),
    "deepseek-ai/DeepSeek-R1": Checkpoint("deepseek-v3", "latent", "fp8_block"),
    "deepseek-ai/DeepSeek-V3": Checkpoint("deepseek-v3", "latent", "fp8_block"),
    "moonshotai/Kimi-K2.5": Checkpoint("kimi-k2", "latent", "bf16", "int4_wo"),
}
_SYSTEMS = {"h100_sxm": "h100-8", "h200_sxm": "h200-8"}
ROUNDS = 10  # requests for each that is in flight, as benchmarks of servers have them
_MOST_APART = 600  # requests in flight at pools of workers: more take minutes to simulate
_POOLS = ("prefill", "decode")
_SIZES = ("tp_size", "attention_dp_size", "moe_tp_size", "moe_ep_size")
_DRAWN = 20  # rows of a model, server and system, in whole groups
# InferenceMAX (rows named by a date, dumps of its database, comparisons with it) draws lengths from
# 0.8 times the given ones upwards: RANDOM_RANGE_RATIO of its benchmarks. Rows of even thousands are
# taken as such too, which was chosen by first tokens of Llama 3.1 8B.
_SHORTEST = 0.8
_INFERENCE_MAX = ("source_file=2", "db-dump", "source_file=kimi")


@dataclass(frozen=True, slots=True)
class ServedRow:
    """One measured server under a fixed number of requests in flight; times in seconds.

    ``by_network``: requests come as the client of InferenceMAX sends them.
    """

    model: str
    server: str
    version: str
    system: str
    math: str
    prompt: int
    output: int
    concurrency: int
    tp: int
    dp: int
    etp: int
    ep: int
    shortest: float
    tokens: int
    by_network: bool
    first: float
    between: float

    @property
    def kind(self) -> str:
        """Dense, with experts, or with latent attention and experts."""
        return MODELS[self.model].kind

    @property
    def load(self) -> tuple[object, ...]:
        """What rows of other numbers of ranks have in common with this one."""
        return (
            *(self.model, self.server, self.version, self.system, self.math, self.shortest),
            *(self.prompt, self.output, self.concurrency, self.ep > 1, self.dp > 1),
        )

    @property
    def measured(self) -> tuple[object, ...]:
        """What a row has in common with copies of it under another name of model or date."""
        return self.server, self.system, self.prompt, self.output, self.first, self.between

    def rate(self, first: float, between: float) -> float:
        """Tokens a second of one GPU, with these times."""
        gpus = self.tp * self.dp
        return self.concurrency * self.output / (first + self.output * between) / gpus

    @property
    def settings(self) -> Server:
        """The server of the row; the newest where neither version nor date was noted."""
        return find_server(self.server, self.version)

    @property
    def transformer(self) -> Transformer:
        """The model, as the row has its ranks share it."""
        checkpoint = MODELS[self.model]
        settings = {"tp": str(self.tp)}
        if self.ep > 1:
            settings |= {"ep": str(self.ep), "etp": str(self.etp)}
        made = transformer_of(checkpoint.name, settings)
        made = replace(
            made,
            math=self.math,
            expert_math=checkpoint.expert_math,
            kv_dtype=checkpoint.kv_dtype or made.kv_dtype,
        )
        return self.settings.served(made)


def served_rows(folder: Path, models: tuple[str, ...]) -> list[ServedRow]:
    """Read single servers of one node, drawn in groups of equal load."""
    with gzip.open(folder / SERVING.folder, "rt", encoding="utf-8") as lines:
        launched = [_as_launched(row) for row in csv.DictReader(lines) if row["mode"] == "agg"]
    rows = [_row(row) for row in launched if _is_served(row, models)]
    found = {row.measured: row for row in reversed(rows)}.values()  # several dumps of one run
    groups: dict[tuple[str, ...], dict[tuple[object, ...], list[ServedRow]]] = defaultdict(dict)
    for row in found:
        groups[row.model, row.server, row.system].setdefault(row.load, []).append(row)
    drawn: list[ServedRow] = []
    for loads in groups.values():
        order = sorted(loads, key=str)
        Random(0).shuffle(order)  # noqa: S311 - a sample, no secret
        mine: list[ServedRow] = []
        for load in order:
            if len(mine) < _DRAWN:
                mine += loads[load]
        drawn += mine
    return drawn


def _is_served(row: dict[str, str], models: tuple[str, ...]) -> bool:
    """Whether a row is of one node and answers a token a request and pass.

    Rows of DeepSeek-R1 of 2026-01-14 answer 1.2 to 1.9 times as fast as rows of equal settings of
    other days. InferenceMAX has a launch script of this version that predicts tokens (MTP), which
    rows do not name.
    """
    wide = _count(row, "tp_size") > 8 or _count(row, "attention_dp_size") > 8
    several = row["backend_version"] == "1.1.0rc2.post2" and "2026-01-14" in _source(row)
    return row["model_path"] in models and not wide and not several


def _source(row: dict[str, str]) -> str:
    return row["silicon_data_source"]


def _as_launched(row: dict[str, str]) -> dict[str, str]:
    """Name ranks of a row of InferenceMAX as its launch scripts have them.

    With experts on ranks of their own, rows converted later name products once more: tp (or dp)
    times ep as tp, ep as moe_tp; or dp times ep as ep, where scripts have no data-parallel ranks.
    Both are measured the same as rows that name them once. MiniMax-M2.5 on H200 by vLLM 0.18 was
    launched with --enable-expert-parallel whatever ep the row names (EP_SIZE -ge 1).
    """
    tp, dp, etp, ep = (_count(row, key) for key in _SIZES)
    sizes = tp, dp, etp, ep
    if not _source(row).startswith(_INFERENCE_MAX):
        return row
    if ep > 1 and etp == ep:
        sizes = (tp // ep, 1, 1, ep) if dp == 1 else (1, dp // ep, 1, ep)
    elif ep > 1 and tp > 1 and dp > 1:
        sizes = tp, 1, 1, ep // dp
    elif "MiniMax" in row["model_path"] and row["backend_version"] == "0.18.0" and ep == 1:
        sizes = tp, 1, 1, tp
    requests = int(row["batch_size"]) * dp // sizes[1]  # of one data-parallel rank
    found = {key: str(size) for key, size in zip(_SIZES, sizes, strict=True)}
    return row | found | {"batch_size": str(requests)}


def _count(row: dict[str, str], key: str) -> int:
    return max(1, int(row[key] or 1))


def _is_varied(row: dict[str, str]) -> bool:
    return _source(row).startswith(_INFERENCE_MAX) or int(row["isl"]) % 1000 == 0


def _tokens(row: dict[str, str]) -> int:
    """Return how many tokens a pass of the measured server may have.

    For InferenceMAX, the settings in its launch scripts (SemiAnalysisAI/InferenceX, benchmarks/).
    The other rows do not say: defaults, and for TensorRT-LLM room for a prompt, a token of each
    request and 1,500 more, which was chosen by first tokens of Qwen3-32B.
    """
    server, model = row["backend"], row["model_path"]
    prompt, output, mine = int(row["isl"]), int(row["osl"]), int(row["batch_size"])
    if not _source(row).startswith(_INFERENCE_MAX):
        return prompt + mine + 1500 if server == "trtllm" else 8192
    if server == "sglang":
        return 32768
    if server == "vllm":
        return 8192
    if "gpt-oss" in model:
        return 20000
    if "Llama" in model:
        return prompt + output + 200
    return prompt + mine + 64


def _dated_version(row: dict[str, str]) -> str:
    """Return the version that was current where none was noted: vLLM 0.14 is of January 2026."""
    old = row["backend"] == "vllm" and "measured=2025" in _source(row)
    return "0.11" if old else ""


def _row(row: dict[str, str]) -> ServedRow:
    checkpoint, dp = MODELS[row["model_path"]], _count(row, "attention_dp_size")
    return ServedRow(
        row["model_path"],
        row["backend"],
        row["backend_version"] or _dated_version(row),
        row["system"],
        checkpoint.math or row["gemm_quant_mode"],
        int(row["isl"]),
        int(row["osl"]),
        int(row["batch_size"]) * dp,
        _count(row, "tp_size"),
        dp,
        _count(row, "moe_tp_size"),
        _count(row, "moe_ep_size"),
        _SHORTEST if _is_varied(row) else 1.0,
        _tokens(row),
        _source(row).startswith(_INFERENCE_MAX),
        float(row["silicon_ttft_ms"]) / 1e3,
        float(row["silicon_tpot_ms"]) / 1e3,
    )


@cache
def predicted(row: ServedRow) -> tuple[float, float] | None:
    """Return both times as weft has them; None where the model does not fit into memory."""
    server = row.settings
    mine = max(1, row.concurrency // row.dp)  # ranks with requests of their own share them out
    load = Load(ROUNDS * mine, row.prompt, row.output, 0.0, inf, row.shortest)
    batch = max(256, mine)
    model = row.transformer
    tokens = max(row.tokens, batch)
    limits = server.limits(model, batch=batch, tokens=tokens, concurrency=mine)
    if row.by_network:
        # What a request takes before the scheduler knows it belongs to the benchmark as well: the
        # other rows of vLLM before 0.14 have none of it, those of InferenceMAX as much as later.
        newest = find_server(row.server)
        limits = replace(
            limits,
            admission=max(limits.admission, newest.admission),
            tokenizing=max(limits.tokenizing, newest.tokenizing),
        )
        if row.server == "trtllm":
            limits = _as_configured(limits, row)
    machine = platform(_SYSTEMS[row.system])
    question = Question(row.model, model, machine, load, limits, server=server)
    try:
        found = question.served("recompute", load.requests())
    except WeftError:
        return None
    return float(found.first.mean()), float(found.gaps.mean())


def _as_configured(limits: BatchLimits, row: ServedRow) -> BatchLimits:
    """Return the limits with what launch scripts of InferenceMAX set for TensorRT-LLM.

    ``stream_interval`` of all models; ``batch_wait_timeout_iters`` and
    ``batch_wait_max_tokens_ratio`` of Llama with as many tokens in as out on less than a node.
    """
    limits = replace(limits, stream=limits.stream / (20 if "gpt-oss" in row.model else 10))
    if "Llama" in row.model and row.prompt == row.output == 1024 and row.tp < 8:
        limits = replace(limits, held_passes=20, held_tokens=0.9 * limits.tokens)
    return limits


class DisaggregatedRow(NamedTuple):
    """One measured pair of pools: a prefill and a decode worker, and how many there are of each."""

    prefill: ServedRow
    decode: ServedRow
    workers: tuple[int, int]


def disaggregated_rows(folder: Path, models: tuple[str, ...]) -> list[DisaggregatedRow]:
    """Read servers with pools of workers that each lie in a node, where their number is noted."""
    with gzip.open(folder / SERVING.folder, "rt", encoding="utf-8") as lines:
        rows = [row for row in csv.DictReader(lines) if row["mode"] == "disagg"]
    found = {}
    for row in rows:
        counted = [row[f"{pool}_num_workers"] for pool in _POOLS]
        if row["model_path"] not in models or not all(counted):
            continue
        prefill, decode = (_row(row | _of_worker(row, pool)) for pool in _POOLS)
        wide = max(each.tp * each.dp for each in (prefill, decode)) > 8
        if not wide and decode.concurrency <= _MOST_APART:
            workers = int(counted[0]), int(counted[1])
            found[decode.measured] = DisaggregatedRow(prefill, decode, workers)
    return list(found.values())


def _of_worker(row: dict[str, str], pool: str) -> dict[str, str]:
    """Name the columns of a worker as those of a server, with all requests in flight.

    Versions of TensorRT-LLM are those of Dynamo's containers, which have a newer one.
    """
    requests = _count(row, "decode_batch_size") * _count(row, "decode_num_workers")
    version = "" if row["backend"] == "trtllm" else row["backend_version"]
    given = {"batch_size": str(requests), "backend_version": version}
    return {key: row[f"{pool}_{key}"] for key in _SIZES} | given


@cache
def predicted_apart(row: DisaggregatedRow) -> tuple[float, float] | None:
    """Return both times of pools as weft has them; None where the model does not fit into memory.

    A rank with requests of its own (data-parallel attention) is a worker.
    """
    questions = []
    for each in (row.prefill, row.decode):
        server, flying = each.settings, row.decode.concurrency
        load = Load(ROUNDS * flying, each.prompt, each.output, 0.0, inf, each.shortest)
        model = each.transformer
        limits = server.limits(model, batch=max(256, flying), concurrency=flying)
        machine = platform(_SYSTEMS[each.system])
        questions.append(Question(each.model, model, machine, load, limits, server=server))
    prefill, decode = questions
    workers = row.workers[0] * row.prefill.dp, row.workers[1] * row.decode.dp
    try:
        found = prefill.disaggregated_row(decode, workers)
    except WeftError:
        return None
    return found["ttft"], found["itl"]
