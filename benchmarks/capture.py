"""What it costs to capture a large torch step, and to predict one on a thousand GPUs."""

from collections.abc import Iterator

from benchmarks.cost import Cost, cost_of
from benchmarks.rows import Options, Row

QUESTION = "What does it cost to capture a large step, and to predict one?"
_CAPTURE = "benchmarks.torch_llama:capture_step"
_PREDICT = "benchmarks.torch_llama:predict_step"


def count_rows(_options: Options) -> int:
    """Return how many cases there are."""
    return 2


def run(options: Options) -> Iterator[Row]:
    """Capture LLaMA-8B with FSDP2 on 64 ranks; predict a captured LLaMA-70B on 1,024."""
    layers = {"model": "llama-8b", "layers": 32, "ranks": 64, "parallelism": "fsdp2"}
    found = [cost_of(_CAPTURE, 8, 64) for _ in range(max(1, options.rounds // 2))]
    yield _row("capture", layers, found)
    layers = {"model": "llama-70b", "layers": 80, "ranks": 1024, "parallelism": "fsdp2"}
    told = [cost_of(_PREDICT, 70, 1024) for _ in range(max(1, options.rounds // 2))]
    times = tuple(each.value["seconds"] for each in told)
    more = {
        "step": told[-1].value["step"],
        "ops": told[-1].value["ops"],
        "cpu": told[-1].value["cpu"],
    }
    yield Row("capture", {"what": "predict", **layers}, times, {}, more)


def _row(what: str, case: dict[str, object], found: list[Cost]) -> Row:
    best = min(found, key=lambda each: each.cpu)
    more = {"cpu": best.cpu, "peak_bytes": max(each.peak_bytes for each in found)}
    times = tuple(each.wall for each in found)
    return Row("capture", {"what": what, **case}, times, {}, {**more, "ops": best.value})
