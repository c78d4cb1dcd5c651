"""Start a module of the tests by itself: whether Triton interprets is decided at import."""

import os
import subprocess
import sys


def started(module, *arguments, timeout=110, **variables):
    """Run ``tests.<module>`` and give the words it wrote."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", f"tests.{module}", *arguments],
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
        env={**os.environ, **variables},
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout.splitlines()
