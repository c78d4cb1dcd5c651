"""Workloads by name, by file and by the settings a user changes."""

from collections.abc import Iterable, Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, TypeVar

from weft.errors import FormatError, UnknownNameError, UsageError, nearest
from weft.hardware.dtypes import ALIASES, item_bytes, known_dtype
from weft.hardware.files import read_toml
from weft.models.building import ITEM_BYTES
from weft.models.dlrm import Dlrm
from weft.models.importers import SUFFIXES, import_file
from weft.models.job import Job
from weft.models.stacks import stack_named
from weft.models.tables import Table, read_tables
from weft.models.torchtitan import is_torchtitan
from weft.models.transformer import Transformer
from weft.models.transformer_layout import AT_LEAST_ONE
from weft.models.zoo import MODELS
from weft.step.step_graph import StepGraph
from weft.units import file_name

# Settings that must be at least 1. For others 0 means none.
_AT_LEAST_ONE = frozenset((*AT_LEAST_ONE, "topk"))
_OTHER_NAMES = {"head_dim": "head_size", "vp": "interleave"}  # of settings, as others call them
# Rows of the 26 tables of the Criteo Kaggle set, as DLRM's own script caps and counts them.
_CRITEO = (
    *(1460, 583, 10131227, 2202608, 305, 24, 12517, 633, 3, 93145, 5683, 8351593, 3194, 27),
    *(14992, 5461306, 10, 5652, 2173, 4, 7046547, 18, 15, 286181, 105, 142572),
)
# Rows and lookups a sample of the 26 tables of DLRM-DCNv2 (MLPerf Training, multi-hot Criteo).
_ROWS = (
    *(40_000_000, 39060, 17295, 7424, 20265, 3, 7122, 1543, 63, 40_000_000, 3067956, 405282, 10),
    *(2209, 11938, 155, 4, 976, 14, 40_000_000, 40_000_000, 40_000_000, 590152, 12973, 108, 36),
)
_HOTS = (3, 2, 1, 2, 6, 1, 1, 1, 1, 7, 3, 8, 1, 6, 9, 5, 1, 1, 1, 12, 100, 27, 10, 3, 1, 1)
Model = TypeVar("Model", bound=Dlrm | Transformer)
DLRMS = {
    "dlrm": Dlrm(tuple(Table(f"table{n}", rows, 128) for n, rows in enumerate(_CRITEO))),
    "dlrm-rm2": Dlrm(
        tuple(Table(f"table{n}", 1_000_000, 64, 80.0, 1.05) for n in range(40)),
        (256, 512, 256, 64),
        (512, 256, 1),
    ),
    # MLPerf Training's recommendation model: the rows of a sample follow from its one index of
    # Criteo, so they repeat as those do
    "dlrm-dcnv2": Dlrm(
        tuple(
            Table(f"table{n}", rows, 128, float(hot), 1.05)
            for n, (rows, hot) in enumerate(zip(_ROWS, _HOTS, strict=True))
        ),
        batch=65536,
        cross=512,
    ),
}


def workload_names() -> tuple[str, ...]:
    """Return the names of all workloads that can be generated."""
    return (*DLRMS, *MODELS)


def generate(name: str, num_ranks: int, settings: Mapping[str, str] | None = None) -> StepGraph:
    """Build a workload by name, or by a file that describes a model and its settings."""
    return job_of(name, num_ranks, settings).graph()


def job_of(name: str, num_ranks: int, settings: Mapping[str, str] | None = None) -> Job:
    """Return the job of a name, of a TOML file of weft, or of a file of another program."""
    given = dict(settings or {})
    stack = given.pop("stack", "")
    if stack:
        stack_named(stack)  # raises for an unknown name before any file is read
    name = configuration_of(name)
    if name.endswith(SUFFIXES):
        found = _from_file(Path(name), num_ranks, given)
    else:
        found = Job(name, changed(name, model_named(name), given), num_ranks)
    return replace(found, stack=stack or found.stack)


def configuration_of(name: str) -> str:
    """Return the configuration in a folder as Hugging Face saves a model; other names as is."""
    inside = Path(name) / "config.json"
    return str(inside) if inside.is_file() else name


def _from_file(path: Path, num_ranks: int, given: dict[str, str]) -> Job:
    if path.suffix == ".toml" and not is_torchtitan(read_toml(path, FormatError)):
        return _from_toml(path, num_ranks, given)
    base: Transformer | None = None
    more: tuple[str, ...] = ()
    if (asked := given.pop("model", None)) is not None:
        base, more = transformer_with_notes(asked, {})
    found = import_file(path, num_ranks, base)
    model = changed(found.name, found.model, given)
    notes = _open_notes((*found.notes, *more), given)
    return Job(found.name, model, num_ranks, notes, found.stack)


def model_named(name: str) -> Dlrm | Transformer:
    """Return the model of a name, as it is without settings."""
    known: dict[str, Dlrm | Transformer] = {**DLRMS, **MODELS}
    if name not in known:
        raise UnknownNameError(f"unknown workload {name!r}", nearest(name, known))
    return known[name]


def settings_of_model(name: str) -> dict[str, Any]:
    """Return the settings of a workload that is known by name, with their values."""
    return _settable(model_named(name))


def _settable(model: Dlrm | Transformer) -> dict[str, Any]:
    return {each.name: getattr(model, each.name) for each in fields(model) if each.name != "tables"}


_DTYPES = frozenset(("math", "expert_math", "kv_dtype", "grad_dtype", "exchange_dtype"))
_SENT = ("grad_dtype", "exchange_dtype")


def changed(name: str, model: Model, settings: Mapping[str, Any]) -> Model:
    """Return the model with changed settings; raise for values it cannot have."""
    if isinstance(model, Transformer):
        settings = {_OTHER_NAMES.get(key, key): value for key, value in settings.items()}
    given = {key: _value(model, key, value) for key, value in settings.items()}
    for key in _AT_LEAST_ONE & given.keys():
        if not given[key]:
            raise UsageError(
                f"{key}: must be at least 1 (got 0 for {name})", f"Use --set {key}=1 or more."
            )
    if given.get("bottom", True) == ():
        raise UsageError(
            f"bottom: must not be empty (got [] for {name})", "Use a list such as [13, 512]."
        )
    if "dtype" in given:
        dtype = given["dtype"] = ALIASES.get(given["dtype"], given["dtype"])
        if dtype not in ITEM_BYTES:
            raise UsageError(f"unknown dtype {dtype!r}", nearest(dtype, ITEM_BYTES))
    for key in _DTYPES & given.keys():
        given[key] = given[key] and known_dtype(given[key])
        if given[key] and key in _SENT and item_bytes(given[key]) < 1:
            raise UsageError(
                f"{key}: no collective moves {given[key]}, elements of less than a byte",
                f"Use --set {key}=bf16.",
            )
    return replace(model, **given)


def _value(model: Dlrm | Transformer, key: str, value: Any) -> Any:
    """Read a setting as the type that it has in the model."""
    kinds = _settable(model)
    if key not in kinds:
        raise UsageError(f"unknown setting {key!r}", nearest(key, kinds))
    now = kinds[key]
    try:
        if key == "recompute" and isinstance(model, Transformer):
            words = {"true": "full", "yes": "full", "1": "full"}
            return (words | dict.fromkeys(("false", "no", "0"), "none")).get(
                str(value).lower(), str(value)
            )
        if isinstance(now, bool):
            return _truth(value)
        if isinstance(value, bool):  # else true would count as 1
            value = str(value)
        if isinstance(now, float):
            return _real(value)
        if isinstance(now, tuple):
            given = value.split("-") if isinstance(value, str) else value
            return tuple(_positive(each) for each in given)
        return _positive(value) if isinstance(now, int) else str(value)
    except (TypeError, ValueError, OverflowError):
        like = "-".join(map(str, now)) if isinstance(now, tuple) else now
        raise UsageError(
            f"cannot read {key}={value!r}", f"Use a value such as {key}={str(like).lower()}."
        ) from None


_LARGEST = 2**53  # integers up to it are exact as floats


def _positive(value: Any) -> int:
    number = int(value)
    if not 0 <= number <= _LARGEST or number != float(value):
        raise ValueError(value)
    return number


def _real(value: Any) -> float:
    number = float(value)
    if not 0 <= number <= _LARGEST:
        raise ValueError(value)
    return number


def _truth(value: Any) -> bool:
    words = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
    if str(value).lower() not in words:
        raise ValueError(value)
    return words[str(value).lower()]


def transformer_of(name: str, settings: Mapping[str, str]) -> Transformer:
    """Return the shape of a transformer by name or file, with settings changed."""
    return transformer_with_notes(name, settings)[0]


def transformer_with_notes(
    name: str, settings: Mapping[str, str]
) -> tuple[Transformer, tuple[str, ...]]:
    """Return a transformer with settings changed, and what its file asks for and it leaves out."""
    notes: tuple[str, ...] = ()
    if name.endswith(SUFFIXES):
        job = _from_file(Path(name), 1, {})
        model, notes = job.model, _open_notes(job.notes, settings)
    else:
        model = model_named(name)
    if not isinstance(model, Transformer):
        raise UsageError(f"expected a transformer (got {name})", nearest("", MODELS))
    return changed(name, model, settings), notes


def _open_notes(notes: Iterable[str], given: Iterable[str]) -> tuple[str, ...]:
    """Return the notes that ask for no setting which was given."""
    return tuple(each for each in notes if not any(f"--set {key}=" in each for key in given))


def tables_of(name: str, settings: Mapping[str, str], batch: int) -> tuple[tuple[Table, ...], int]:
    """Return the tables of a file or of a DLRM by name, and the samples of a batch."""
    if name.endswith(".toml"):
        document = read_toml(Path(name), FormatError)
        tables = read_tables(document, name)
        batch = _value(DLRMS["dlrm"], "batch", document.get("batch", batch))
    else:
        model = model_named(name)
        if not isinstance(model, Dlrm):
            raise UsageError(f"{name} has no embedding tables to shard", nearest(name, DLRMS))
        tables, batch = model.tables, model.batch
    for key, value in settings.items():
        if key != "batch":
            raise UsageError(f"unknown setting {key!r}", nearest(key, ("batch",)))
        batch = _value(DLRMS["dlrm"], key, value)
    return tables, batch


def _from_toml(path: Path, num_ranks: int, settings: Mapping[str, str]) -> Job:
    """Read a file: ``model`` names what it starts from, all other keys are its settings."""
    document = read_toml(path, FormatError)
    own = {key: value for key, value in document.items() if key not in ("model", "tables", "name")}
    base = model_named(str(document.get("model", "dlrm" if "tables" in document else "")))
    if "tables" in document:
        if not isinstance(base, Dlrm):
            raise FormatError(f"{path}: {document['model']} has no tables")
        base = replace(base, tables=read_tables(document, str(path)))
    name = str(document.get("name", file_name(path.stem)))
    return Job(name, changed(name, base, {**own, **settings}), num_ranks)
