"""Whether the platform of ``weft calibrate`` predicts the collectives of this machine."""

from collections.abc import Iterator
from statistics import median
from typing import Any, NamedTuple

from benchmarks.launch import require_known
from benchmarks.rows import Options, Row
from weft.calibration.machine_calibration import STEPS, calibrated, measure_step
from weft.calibration.microbenchmarks import Round, batches, changed, pin, slowest, typical
from weft.collectives import KINDS, algorithms, collective
from weft.errors import ScheduleError, UsageError
from weft.hardware import Platform
from weft.runtime import World, prepare, spawn
from weft.runtime.streaming_stores import VARIABLE as STORES
from weft.schedule import Schedule
from weft.simulator import simulate

QUESTION = "How near do prices on the calibrated machine come to what it takes?"
RANKS = 2
COLLECTIVES = ("all_gather", "reduce_scatter", "all_reduce", "broadcast", "all_to_all")
SIZES = tuple(1 << shift for shift in (10, 13, 16, 20, 22, 24, 26))
_TIMEOUT = 60.0


class _Case(NamedTuple):
    """A collective that is priced and run."""

    kind: str
    algorithm: str
    nbytes: int

    def schedule(self) -> Schedule:
        options: dict[str, Any] = {"dtype": "float32"} if "reduce" in self.kind else {}
        return collective(self.kind, self.algorithm, num_ranks=RANKS, nbytes=self.nbytes, **options)


def run(options: Options) -> Iterator[Row]:
    """Calibrate, then price and run every algorithm; a row for each, and one for all."""
    cases = list(_cases(options))
    platform = calibrated({name: measure_step(act) for name, act in STEPS})
    errors = []
    shared = platform.require_device().shared
    assert shared is not None
    with changed({STORES: str(shared.streamed_from)}):  # as on a machine that is calibrated
        measured = _measured(cases)
    for case, seconds in zip(cases, measured, strict=True):
        predicted = _predicted(case, platform)
        errors.append(abs(predicted / seconds - 1))
        more = {"predicted": predicted, "error": predicted / seconds - 1}
        yield Row("here", {**case._asdict(), "ranks": RANKS}, (seconds,), more=more)
    near = sum(error <= 0.25 for error in errors) / len(errors)
    more = {"median error": median(errors), "within 25 %": near}
    yield Row("here", {"cases": len(errors), "ranks": RANKS}, (0.0,), more=more)


def count_rows(options: Options) -> int:
    """Return how many rows there will be."""
    return len(list(_cases(options))) + 1


def _cases(options: Options) -> Iterator[_Case]:
    require_known(options.collectives, KINDS, "collective")
    for kind in options.collectives or COLLECTIVES:
        for name in options.algorithms or algorithms(kind):
            # What is prelaunched is priced from its release on, and a run has all of it.
            if "prelaunch" in name or "+" in name:
                continue
            for nbytes in options.sizes or SIZES:
                case = _Case(kind, name, nbytes)
                if _applies(case):
                    yield case


def _applies(case: _Case) -> bool:
    try:
        case.schedule()
    except (UsageError, ScheduleError):
        return False
    return True


def _predicted(case: _Case, platform: Platform) -> float:
    return simulate(case.schedule(), platform.resized(RANKS)).makespan


def _measured(cases: list[_Case]) -> list[float]:
    by_rank = spawn(rank_main, RANKS, cases, timeout=_TIMEOUT)
    return [typical(slowest(of_ranks)) for of_ranks in zip(*by_rank, strict=True)]


def rank_main(world: World, cases: list[_Case]) -> list[list[Round]]:
    """Run every case again and again on a core of its own, as ``weft collective --run`` does."""
    pin(world)
    found = []
    for case in cases:
        with prepare(case.schedule(), world) as prepared:
            world.barrier()
            found.append(batches(world, prepared.run))
    return found
