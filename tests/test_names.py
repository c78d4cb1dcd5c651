"""A class or module name is used once in the whole package, so that a search finds one thing."""

import ast
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path

SRC = Path(__file__).parents[1] / "src" / "weft"

# Names that are still used more than once. Do not add to these lists: choose another name.
DUPLICATE_CLASSES: set[str] = set()
DUPLICATE_MODULES: set[str] = set()


def public_classes() -> Iterator[tuple[str, str]]:
    """Yield the name and the file of every public class at the top level of a module."""
    for path in sorted(SRC.rglob("*.py")):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                yield node.name, str(path.relative_to(SRC))


def modules() -> Iterator[tuple[str, str]]:
    """Yield the name and the path of every module; packages are told apart by their folders."""
    for path in sorted(SRC.rglob("*.py")):
        if not path.stem.startswith("__"):
            yield path.stem, str(path.relative_to(SRC))


def used_twice(names: Iterable[tuple[str, str]], known: set[str]) -> dict[str, list[str]]:
    """Return the names that stand in several places and are not ``known`` to do so."""
    places: dict[str, list[str]] = defaultdict(list)
    for name, place in names:
        places[name].append(place)
    return {n: found for n, found in places.items() if len(found) > 1 and n not in known}


def test_a_class_name_is_used_once():
    assert used_twice(public_classes(), DUPLICATE_CLASSES) == {}


def test_a_module_name_is_used_once():
    assert used_twice(modules(), DUPLICATE_MODULES) == {}


def test_a_name_in_two_places_is_found():
    found = used_twice([("Layout", "a.py"), ("Plan", "a.py"), ("Layout", "b.py")], set())
    assert found == {"Layout": ["a.py", "b.py"]}


def test_no_folder_has_more_than_25_modules():
    sizes = {folder: len(list(folder.glob("*.py"))) for folder in SRC.rglob("*") if folder.is_dir()}
    assert {folder.name: size for folder, size in sizes.items() if size > 25} == {}
