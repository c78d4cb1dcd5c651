"""Measured servers: time to the first token and between tokens, read where the table lies."""

import csv
import gzip
import random
from collections import defaultdict
from dataclasses import dataclass, replace
from functools import cache
from math import inf
from pathlib import Path

from validation.splits import SERVING
from weft.errors import WeftError
from weft.hardware import platform
from weft.models.named import transformer_of
from weft.models.transformer import Transformer
from weft.serving import Load, Question, find_server

MODELS = {
    "Qwen/Qwen3-32B": "qwen3-32b",
    "meta-llama/Llama-3.1-8B-Instruct": "llama-3.1-8b",
    "nvidia/Llama-3.1-8B-Instruct-FP8": "llama-3.1-8b",
    "meta-llama/Llama-3.1-70B": "llama-3.1-70b",
    "Qwen/Qwen3-235B-A22B-FP8": "qwen3-235b-a22b",
    "deepseek-ai/DeepSeek-R1": "deepseek-v3",
    "deepseek-ai/DeepSeek-V3": "deepseek-v3",
    "openai/gpt-oss-120b": "gpt-oss-120b",
}
FITTED = "Qwen/Qwen3-32B"
_SYSTEMS = {"h100_sxm": "h100-8", "h200_sxm": "h200-8"}
# Hopper has no units for four bits: weights are widened before they are multiplied.
_MATH = {"fp8": "fp8", "fp8_block": "fp8_block", "nvfp4": "int4_wo", "": ""}
ROUNDS = 10  # requests for each that is in flight, as benchmarks of servers have them
_DRAWN = 20  # rows of a model and server, in whole groups


@dataclass(frozen=True, slots=True)
class ServedRow:
    """One measured server under a fixed number of requests in flight; times in seconds."""

    model: str
    server: str
    version: str
    system: str
    math: str
    prompt: int
    output: int
    concurrency: int
    tp: int
    ep: int
    first: float
    between: float

    @property
    def load(self) -> tuple[object, ...]:
        """What rows of other numbers of ranks have in common with this one."""
        return (
            *(self.model, self.server, self.version, self.system, self.math),
            *(self.prompt, self.output, self.concurrency, self.ep > 1),
        )

    def rate(self, first: float, between: float) -> float:
        """Tokens a second of one GPU, with these times."""
        return self.concurrency * self.output / (first + self.output * between) / self.tp

    @property
    def transformer(self) -> Transformer:
        """The model, as the row has its ranks share it."""
        settings = {"tp": str(self.tp)}
        if self.ep > 1:
            settings |= {"ep": str(self.ep), "etp": str(max(1, self.tp // self.ep))}
        made = transformer_of(MODELS[self.model], settings)
        return find_server(self.server).served(replace(made, math=self.math))


def served_rows(folder: Path) -> list[ServedRow]:
    """Read single servers of one node whose attention is not data parallel, drawn in groups."""
    with gzip.open(folder / SERVING.folder, "rt", encoding="utf-8") as lines:
        found = [_row(row) for row in csv.DictReader(lines) if _is_served(row)]
    groups: dict[tuple[str, str], dict[tuple[object, ...], list[ServedRow]]] = defaultdict(dict)
    for row in found:
        groups[row.model, row.server].setdefault(row.load, []).append(row)
    drawn: list[ServedRow] = []
    for loads in groups.values():
        order = sorted(loads, key=str)
        random.Random(0).shuffle(order)  # noqa: S311 - a sample, no secret
        mine: list[ServedRow] = []
        for load in order:
            if len(mine) < _DRAWN:
                mine += loads[load]
        drawn += mine
    return drawn


def _is_served(row: dict[str, str]) -> bool:
    wide = int(row["tp_size"] or 0) > 8 or (row["attention_dp_size"] or "1") != "1"
    return row["mode"] == "agg" and row["model_path"] in MODELS and not wide


def _row(row: dict[str, str]) -> ServedRow:
    return ServedRow(
        row["model_path"],
        row["backend"],
        row["backend_version"],
        row["system"],
        _MATH.get(row["gemm_quant_mode"], ""),
        int(row["isl"]),
        int(row["osl"]),
        int(row["batch_size"]),
        int(row["tp_size"]),
        max(1, int(row["moe_ep_size"] or 1)),
        float(row["silicon_ttft_ms"]) / 1e3,
        float(row["silicon_tpot_ms"]) / 1e3,
    )


@cache
def predicted(row: ServedRow) -> tuple[float, float] | None:
    """Return both times as weft has them; None where the model does not fit into memory."""
    server = find_server(row.server)
    load = Load(ROUNDS * row.concurrency, row.prompt, row.output, 0.0, inf)
    limits = server.limits(batch=max(256, row.concurrency), concurrency=row.concurrency)
    machine = platform(_SYSTEMS[row.system])
    question = Question(row.model, row.transformer, machine, load, limits, server=server)
    try:
        found = question.served("recompute", load.requests())
    except WeftError:
        return None
    return float(found.first.mean()), float(found.gaps.mean())
