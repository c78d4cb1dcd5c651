"""Which program's configuration a file is: one line a format."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from weft.errors import FormatError, UsageError
from weft.hardware.files import read_toml
from weft.models.accelerate import is_accelerate, read_accelerate
from weft.models.deepspeed import is_deepspeed, read_deepspeed
from weft.models.huggingface import is_huggingface, read_huggingface
from weft.models.imported import Imported, read_json, read_text, read_yaml
from weft.models.megatron import is_megatron, read_megatron
from weft.models.torchtitan import is_torchtitan, read_torchtitan
from weft.models.transformer import Transformer

Document = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Format:
    """A kind of file: its suffixes, how it is recognized, and how it is read.

    ``read`` takes the path, the number of ranks, and a model for files that have none.
    """

    name: str
    suffixes: tuple[str, ...]
    recognized: Callable[[Document], bool]
    read: Callable[[Path, int, Transformer | None], Imported]


def _read_huggingface(path: Path, num_ranks: int, model: Transformer | None) -> Imported:
    del num_ranks
    if model is not None:
        raise UsageError(f"{path} has a model of its own: --set model= is too late")
    return read_huggingface(path)


FORMATS = (
    Format("Hugging Face", (".json",), is_huggingface, _read_huggingface),
    Format("DeepSpeed", (".json",), is_deepspeed, read_deepspeed),
    Format("torchtitan", (".toml",), is_torchtitan, read_torchtitan),
    Format("accelerate", (".yaml", ".yml"), is_accelerate, read_accelerate),
    Format("Megatron-LM", (".yaml", ".yml"), is_megatron, read_megatron),
    Format("Megatron-LM", (".sh", ".args", ".txt"), bool, read_megatron),
)
SUFFIXES = tuple(sorted({suffix for each in FORMATS for suffix in each.suffixes}))


def format_of(path: Path) -> Format | None:
    """Return the format of a file, None where it is of no known program."""
    document = _document(path)
    for each in FORMATS:
        if path.suffix in each.suffixes and each.recognized(document):
            return each
    return None


def import_file(path: Path, num_ranks: int, model: Transformer | None = None) -> Imported:
    """Read a file of another program."""
    found = format_of(path)
    if found is None:
        known = sorted({each.name for each in FORMATS if path.suffix in each.suffixes})
        raise FormatError(
            f"{path} is not a configuration of {' or '.join(known) or 'a known program'}",
            f"Known: {', '.join(dict.fromkeys(each.name for each in FORMATS))}.",
        )
    return found.read(path, num_ranks, model)


def _document(path: Path) -> Document:
    match path.suffix:
        case ".json":
            return read_json(path)
        case ".toml":
            return read_toml(path, FormatError)
        case ".yaml" | ".yml":
            return read_yaml(path)
        case _:
            return {"text": read_text(path)} if "--" in read_text(path) else {}
