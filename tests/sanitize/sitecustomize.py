"""Load a native core that was built elsewhere: the one in the folder WEFT_SANITIZED.

On PYTHONPATH it holds for Python and all ranks that it starts, and nothing installed changes.
"""

import importlib.abc
import importlib.util
import os
import sys
from pathlib import Path


class _Core(importlib.abc.MetaPathFinder):
    def find_spec(self, fullname, _path, _target=None):
        if fullname != "weft._core":
            return None
        (core,) = Path(os.environ["WEFT_SANITIZED"]).glob("_core*.so")
        return importlib.util.spec_from_file_location(fullname, core)


if "WEFT_SANITIZED" in os.environ:
    sys.meta_path.insert(0, _Core())
