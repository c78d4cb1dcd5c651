"""Weights as training leaves them: a small transformer that learns Python's own library.

Codecs see through random numbers and through weights that were never trained; what they make of
those says little. Trained once on a machine, and kept.
"""

import contextlib
import sysconfig
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from benchmarks.environments import cache

_STEPS, _BATCH, _LENGTH, _WIDTH, _LAYERS = 100, 8, 48, 256, 4
_NAME = f"weights-{_STEPS}x{_BATCH}x{_LENGTH}-{_WIDTH}x{_LAYERS}.npy"


def trained_weights() -> NDArray[np.float32]:
    """Return the weights, 13 MB of them; the first time they are trained, in about a minute."""
    path = cache() / _NAME
    with contextlib.suppress(OSError, ValueError):
        kept: NDArray[np.float32] = np.load(path)
        return kept
    weights = _trained()
    with contextlib.suppress(OSError):  # then the next one trains them again
        path.parent.mkdir(parents=True, exist_ok=True)
        with NamedTemporaryFile(dir=path.parent, suffix=".npy", delete=False) as file:
            np.save(file, weights)
        Path(file.name).replace(path)
    return weights


class TextModel(nn.Module):
    """A transformer of some layers: bytes in, the next byte out."""

    def __init__(self, width: int = _WIDTH, layers: int = _LAYERS) -> None:
        super().__init__()
        self.embed = nn.Embedding(256, width)
        self.place = nn.Embedding(_LENGTH, width)
        layer = nn.TransformerEncoderLayer(width, 4, 4 * width, 0.0, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(width, 256)

    def forward(self, text: torch.Tensor) -> torch.Tensor:
        """Return the logits of every next byte."""
        mask = nn.Transformer.generate_square_subsequent_mask(text.shape[1])
        values = self.embed(text) + self.place.weight[: text.shape[1]]
        logits: torch.Tensor = self.head(self.layers(values, mask=mask, is_causal=True))
        return logits


def _trained() -> NDArray[np.float32]:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model, text = TextModel(), text_of_library()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        starts = torch.randint(len(text) - _LENGTH - 1, (_STEPS, _BATCH))
        for step in starts:
            optimizer.zero_grad()
            backward(loss_of(model, text, step))
            optimizer.step()
    parts = [each.detach().flatten().numpy() for each in model.parameters()]
    return np.concatenate(parts)


def loss_of(model: nn.Module, text: torch.Tensor, starts: torch.Tensor) -> torch.Tensor:
    """Return how badly the model predicts the lines of text that begin there."""
    lines = torch.stack([text[at : at + _LENGTH + 1] for at in starts.tolist()]).long()
    logits = model(lines[:, :-1])
    return nn.functional.cross_entropy(logits.flatten(0, 1), lines[:, 1:].flatten())


def backward(loss: Any) -> None:
    """Compute the gradients; torch does not say what its method takes."""
    loss.backward()


def text_of_library() -> torch.Tensor:
    """Return the bytes of Python's own library, some of it."""
    sources = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))[:60]
    return torch.frombuffer(
        bytearray(b"".join(path.read_bytes() for path in sources)), dtype=torch.uint8
    )
