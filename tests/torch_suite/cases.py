"""PyTorch's own distributed tests, as its wheel has them, on the backend that BACKEND names.

torch decides what to test by comparing the name of the backend with those it knows. So the name
``weft`` equals ``gloo`` here: every test that torch runs on Gloo runs on weft, and none is copied.
"""

from __future__ import annotations

import os
import unittest
from typing import Any

import torch.distributed as dist
import torch.multiprocessing

from weft.torch.backend.process_group import register


class GlooLike(str):
    """The name of a backend for which torch's tests of Gloo apply."""

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        return str.__eq__(self, other) or other == "gloo"

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return hash("gloo")  # torch looks it up in sets, too


class _Environment(dict[str, str]):
    """The environment of this process, whose BACKEND compares as Gloo."""

    def __getitem__(self, key: str) -> str:
        value: str = super().__getitem__(key)
        return GlooLike(value) if key == "BACKEND" else value


def _imported() -> Any:
    """Import torch's tests while os.environ names the backend in that way."""
    register()
    backends: Any = dist.Backend
    environment, name = os.environ, backends.WEFT
    backends.WEFT = GlooLike(name)
    os.environ = _Environment(environment)  # type: ignore[assignment] # noqa: B003 - for one import
    try:
        from torch.testing._internal.distributed import distributed_test
    finally:
        os.environ = environment  # noqa: B003 - as it was
        backends.WEFT = name
    return distributed_test


suite = _imported()


class TorchSuite(suite.TestDistBackend, suite.DistributedTest._DistTestBase):  # type: ignore[misc,name-defined]
    """Every test of torch's ``distributed_test``; ranks are forked, which saves importing torch."""

    def setUp(self) -> None:
        """Start the ranks of a test."""
        super().setUp()
        self._start_processes(torch.multiprocessing.get_context("fork").Process)


class RecordedResult(unittest.TestResult):
    """The outcome of each test by its name: passed, skipped with a reason, or failed."""

    def __init__(self) -> None:
        super().__init__()
        self.outcomes: dict[str, tuple[str, str]] = {}

    def addSuccess(self, test: unittest.TestCase) -> None:  # noqa: N802 - unittest names it
        self._note(test, "passed", "")

    def addSkip(self, test: unittest.TestCase, reason: str) -> None:  # noqa: N802
        self._note(test, "skipped", reason)

    def addError(self, test: unittest.TestCase, err: Any) -> None:  # noqa: N802
        self._note(test, "failed", str(err[1]))

    def addFailure(self, test: unittest.TestCase, err: Any) -> None:  # noqa: N802
        self._note(test, "failed", str(err[1]))

    def _note(self, test: unittest.TestCase, outcome: str, why: str) -> None:
        self.outcomes[test.id().rpartition(".")[2]] = (outcome, why)
