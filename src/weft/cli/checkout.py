"""Packages of a checkout that are not installed with weft: benchmarks and validation."""

import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

from weft.errors import UsageError


def checkout_module(name: str) -> ModuleType:
    """Return a module such as ``benchmarks.command`` of the checkout that weft runs from.

    An editable installation knows its checkout; otherwise the current folder may be one.
    """
    package = name.partition(".")[0]
    for root in (Path(__file__).parents[3], Path.cwd()):
        if (root / package / "__init__.py").is_file() and (root / "src" / "weft").is_dir():
            if str(root) not in sys.path:
                sys.path.append(str(root))
            break
    if find_spec(package) is None:
        raise UsageError(
            f"{package} is not installed with weft",
            f"Clone the repository and run python -m {package} there.",
        )
    return import_module(name)
