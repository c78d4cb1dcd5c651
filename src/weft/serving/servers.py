"""Inference servers as data: how each makes up its passes, and what its host adds.

A server differs from another in which tokens it computes together, in what it does between two
passes, and in whose kernels sum over ranks. ``weft serve --server vllm`` takes a line of this
table. To add a server, add a line; its all-reduces are those of the library of its name where one
was measured (``catalogue/libraries``).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from weft.errors import UnknownNameError, nearest
from weft.serving.batching import BatchLimits

if TYPE_CHECKING:
    from weft.models.transformer import Transformer


@dataclass(frozen=True, slots=True)
class Server:
    """A server with its default settings.

    ``tokens`` of a pass at most; a ``mixed`` server computes parts of prompts in the same pass as
    answers, another one waiting prompts first. ``overhead`` passes on the host between two passes.
    ``narrow_cache``: keys and values of a model in fp8 are kept in fp8 as well.
    """

    name: str
    tokens: int
    mixed: bool
    overhead: float
    narrow_cache: bool = False

    def limits(self, *, batch: int, concurrency: int = 0) -> BatchLimits:
        """Return how it makes up batches of so many requests at most."""
        return BatchLimits(
            batch=batch,
            tokens=max(self.tokens, batch),
            overhead=self.overhead,
            mixed=self.mixed,
            concurrency=concurrency,
        )

    def served(self, model: Transformer) -> Transformer:
        """Return the model as it computes it: the kernel before a product in fp8 quantizes."""
        return replace(model, math="fp8_fused") if model.math in ("fp8", "fp8_static") else model


# ``tokens`` and ``mixed`` are defaults of the servers: max_num_batched_tokens of vLLM's engine V1,
# chunked_prefill_size of SGLang, which computes prompts in passes of their own, max_num_tokens of
# TensorRT-LLM. ``overhead`` is fitted to Qwen3-32B on H100 (validation/serving.py): 0 for SGLang,
# whose scheduler runs while the device computes.
_TABLE = (
    Server("vllm", 2048, mixed=True, overhead=1.5e-3),
    Server("sglang", 8192, mixed=False, overhead=0.0),
    Server("trtllm", 8192, mixed=True, overhead=1.0e-3, narrow_cache=True),
)
SERVERS = {server.name: server for server in _TABLE}


def find_server(name: str) -> Server:
    """Return a server by its name."""
    if name not in SERVERS:
        raise UnknownNameError(f"no server is called {name!r}", nearest(name, tuple(SERVERS)))
    return SERVERS[name]
