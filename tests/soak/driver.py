"""Start a soak as a program of its own, which has one thread and no world; read what it says."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.runtime.leftovers import nothing_left

ROOT = Path(__file__).parents[2]


def lines_of(module: str, *args: object) -> list[dict[str, Any]]:
    """What the module prints, for a seed that is shown and that ``WEFT_SEED`` sets."""
    seed = int(os.environ.get("WEFT_SEED", random.SystemRandom().randrange(1 << 30)))
    sys.stdout.write(f"WEFT_SEED={seed}\n")
    command = [sys.executable, "-W", "ignore", "-m", module, str(seed), *map(str, args)]
    with (
        nothing_left(),
        subprocess.Popen(
            command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        ) as program,
    ):
        try:
            output, errors = program.communicate()
        finally:
            program.kill()  # its ranks die with it
    assert program.returncode == 0, errors
    return [json.loads(line) for line in output.splitlines()]
