"""What workers of sweeps are asked in tests."""

import os
import time
from pathlib import Path


def ask(words):
    """Do what the words say."""
    match words:
        case ["give", value]:
            return [{"value": int(value)}], ""
        case ["fail", why]:
            return [], why
        case ["die"]:
            os._exit(3)
        case ["die-once", file]:
            if not Path(file).exists():
                Path(file).touch()
                os._exit(3)
            return [{"value": -1}], ""
        case ["hang"]:
            time.sleep(1000)
    raise AssertionError(words)
