"""A plugin of pytest that lets one module of weft be imported with one wrong change in it.

``WEFT_MUTANT`` names it as ``weft.schedule.happens_before:17``; ranks that tests start inherit it
only if they load this, too, which the packages that are mutated do not need.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

from tests.mutation.sites import mutated


class Mutant(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds the one module, and makes it wrong."""

    def __init__(self, name: str, number: int, path: Path) -> None:
        self._name, self._number, self._path = name, number, path

    def find_spec(
        self, fullname: str, _path: Sequence[str] | None, _target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != self._name:
            return None
        return importlib.util.spec_from_file_location(fullname, self._path, loader=self)

    def exec_module(self, module: ModuleType) -> None:
        tree = mutated(self._path.read_text(encoding="utf-8"), self._number)
        exec(compile(tree, str(self._path), "exec"), module.__dict__)


def install(mutant: str) -> None:
    name, _, number = mutant.partition(":")
    root = Path(__file__).parents[2] / "src"
    sys.meta_path.insert(
        0, Mutant(name, int(number), root.joinpath(*name.split(".")).with_suffix(".py"))
    )
    assert name not in sys.modules, f"{name} was imported before it could be changed"


if "WEFT_MUTANT" in os.environ:
    install(os.environ["WEFT_MUTANT"])
