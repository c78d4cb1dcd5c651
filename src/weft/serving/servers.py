"""Inference servers as data: how each makes up its passes, and what its host adds.

A server differs from another in which tokens it computes together, in what it does between two
passes, and in whose kernels sum over ranks. ``weft serve --server vllm`` takes a line of this
table. To add a server, add a line; its all-reduces are those of the library of its name where one
was measured (``catalogue/libraries``).
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from weft.errors import UnknownNameError, UsageError, nearest
from weft.serving.batching import BatchLimits

if TYPE_CHECKING:
    from weft.models.transformer import Transformer


@dataclass(frozen=True, slots=True)
class Server:
    """A server with its default settings, from a version on.

    ``tokens`` of a pass at most; a ``mixed`` server computes prompts in the same pass as answers,
    another one waiting prompts first; one that is not ``chunked`` computes a prompt in one pass; a
    ``pipelined`` one chooses what a pass computes while the one before runs. ``overhead`` passes on
    the host between two passes, and ``request_overhead`` for each request of a pass, ``admission``
    before a request is known to the scheduler,
    ``tokenizing`` for every token of its prompt, ``stream`` for every token of an answer. Launches
    of a pass with prompts take ``eager`` for each layer at least, ``eager_experts`` for each layer
    with experts. ``experts``: what its kernel of experts takes over the measured one of vLLM.
    ``narrow_cache``: keys and values of a model in fp8 are kept in fp8 as well.
    """

    name: str
    since: tuple[int, ...]
    tokens: int
    mixed: bool
    overhead: float
    request_overhead: float = 0.0
    admission: float = 0.0
    tokenizing: float = 0.0
    stream: float = 0.0
    eager: float = 0.0
    eager_experts: float = 0.0
    experts: float = 1.0
    chunked: bool = True
    pipelined: bool = True
    narrow_cache: bool = False

    def limits(
        self, model: Transformer, *, batch: int, tokens: int | None = None, concurrency: int = 0
    ) -> BatchLimits:
        """Return how it makes up batches of so many requests at most, for a model."""
        eager = sum(self.eager_experts if kind.experts else self.eager for kind in model.kinds)
        return BatchLimits(
            batch=batch,
            tokens=tokens or max(self.tokens, batch),
            overhead=self.overhead,
            request_overhead=self.request_overhead,
            admission=self.admission,
            tokenizing=self.tokenizing,
            stream=self.stream,
            eager=eager,
            mixed=self.mixed,
            chunked=self.chunked,
            pipelined=self.pipelined,
            concurrency=concurrency,
        )

    def served(self, model: Transformer) -> Transformer:
        """Return the model as it computes it: the kernel before a product in fp8 quantizes."""
        math = model.math or model.dtype
        if self.narrow_cache and "fp8" in math:
            model = replace(model, kv_dtype=model.kv_dtype or "fp8")
        return replace(model, math="fp8_fused") if math in ("fp8", "fp8_static") else model


# ``tokens``, ``mixed`` and ``chunked`` are defaults of the servers on H100 and H200:
# max_num_batched_tokens of vLLM's engine V1, chunked_prefill_size of SGLang, which computes prompts
# in passes of their own, max_num_tokens of TensorRT-LLM, which computes a prompt whole. vLLM
# schedules the next pass while one runs from 0.14 on (--async-scheduling), SGLang and TensorRT-LLM
# always (overlap scheduler). The other numbers are fitted to four models (validation/splits.py):
# docs/serve.md says which to which rows.
_TABLE = (
    Server(
        "vllm", (), 8192, mixed=True, overhead=0.5e-3, request_overhead=30e-6, pipelined=False
    ),
    Server(
        "vllm", (0, 14), 8192, mixed=True, overhead=0.0, request_overhead=3e-6, admission=15e-3,
        tokenizing=3e-6,
    ),
    Server(
        "sglang", (), 8192, mixed=False, overhead=0.0, admission=15e-3, tokenizing=3e-6,
        stream=50e-6, experts=0.7,
    ),
    Server(
        "sglang", (0, 5, 9), 8192, mixed=False, overhead=0.0, admission=0.12, tokenizing=3e-6,
        stream=50e-6, experts=0.7,
    ),
    Server(
        "trtllm", (), 8192, mixed=True, chunked=False, overhead=0.7e-3, request_overhead=10e-6,
        tokenizing=4e-6, stream=100e-6, eager=0.8e-3, eager_experts=1e-3, narrow_cache=True,
    ),
    Server(
        "trtllm", (1, 1), 8192, mixed=True, chunked=False, overhead=0.7e-3, request_overhead=10e-6,
        admission=15e-3, tokenizing=6e-6, stream=100e-6, eager=0.8e-3, eager_experts=1.5e-3,
        narrow_cache=True,
    ),
)  # fmt: skip
SERVERS = {server.name: server for server in _TABLE}


def find_server(name: str, version: str = "") -> Server:
    """Return a server by its name, the newest or that of a version, also as ``vllm@0.12``."""
    name, _, given = name.partition("@")
    if name not in SERVERS:
        raise UnknownNameError(f"unknown server {name!r}", nearest(name, tuple(SERVERS)))
    if given and not re.match(r"[0-9]{1,9}(\.|$)", given):
        raise UsageError(f"--server: {given!r} is not a version", f"Use {name}@0.12, say.")
    asked = tuple(int(number) for number in re.findall(r"[0-9]{1,9}", version or given)[:3])
    if not asked:
        return SERVERS[name]
    return [each for each in _TABLE if each.name == name and each.since <= asked][-1]
