"""Durations of the ops and lookups of captured steps, each timed alone and repeatedly."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import chain

import numpy as np

from weft.calibration.torch_lookup_rates import ITEM, LookupCase, Measured, columns_of, measured
from weft.calibration.torch_op_calls import OpCall
from weft.calibration.torch_op_times import OpTime, Repeated, repeat_ops, typical
from weft.calibration.torch_timed_steps import CapturedStep
from weft.cost.lookups import BACKWARD_LOOKUPS, TERMS, core_seconds
from weft.hardware import Platform
from weft.local_runs.synthetic_models import RANKS, SyntheticDlrm, SyntheticModel
from weft.models.tables import Table


class OpTimings:
    """Times the ops of some models' steps, never a step itself.

    The machine changes its speed within minutes, so ``measure`` is called in turn with what the
    ops are compared with. ``repeats`` is the number of runs of an op in each call; with
    ``lookups``, weft's embedding lookups are timed too.
    """

    def __init__(
        self,
        steps: Sequence[tuple[SyntheticModel, CapturedStep]],
        *,
        repeats: int = 12,
        lookups: bool = True,
    ) -> None:
        self._repeats = repeats
        self._calls: list[OpCall] = list(
            dict.fromkeys(call for _, step in steps for call in step.unique)
        )
        self._cases = list(
            dict.fromkeys(
                LookupCase(Table("table", rows, model.dim, pooling, zipf), model.batch)
                for model, _ in steps
                if lookups and isinstance(model, SyntheticDlrm)
                for rows, pooling, zipf in model.tables
            )
        )
        self._passes: list[list[list[Repeated]]] = []
        self._lookups: list[Measured] = []

    def measure(self) -> None:
        """Time every op and lookup once more."""
        self._passes.append(repeat_ops(self._calls, repeats=self._repeats))
        if self._cases:
            self._lookups.append(measured(self._cases, ranks=RANKS))

    def times(self) -> dict[OpCall, OpTime]:
        """Return the typical duration of each op."""
        return dict(zip(self._calls, typical(merge_passes(self._passes)), strict=True))

    def corrected_lookups(self, on: Platform) -> Platform:
        """Return the platform with the measured rates of lookups."""
        return corrected_lookups(on, self._lookups) if self._lookups else on


def merge_passes(passes: Sequence[Sequence[Sequence[Repeated]]]) -> list[list[Repeated]]:
    """Merge the repetitions of several passes, by rank and call."""
    return [
        [list(chain.from_iterable(each)) for each in zip(*ranks, strict=True)]
        for ranks in zip(*passes, strict=True)
    ]


def corrected_lookups(here: Platform, found: Sequence[Measured]) -> Platform:
    """Return the platform with its lookup costs scaled to the median of these measurements."""
    device, lookups = here.require_device(), {}
    for name, takes in device.lookups.items():
        rows = [(case, times[name].seconds) for each in found for case, times in each]
        columns = columns_of([case for case, _ in rows])
        by_model = core_seconds(columns, ITEM, takes, backward=name in BACKWARD_LOOKUPS)
        off = float(np.exp(np.median(np.log([seconds for _, seconds in rows] / by_model))))
        lookups[name] = replace(takes, **{term: off * getattr(takes, term) for term in TERMS})
    return replace(here, device=replace(device, lookups=lookups))
