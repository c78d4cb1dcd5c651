"""Verbs whose work is in a checkout."""

import os
import subprocess
import sys

import pytest

CODE = """
import sys
from weft.cli import main
from weft.cli.verbs import bench_verb
bench_verb.__file__ = "/nowhere/weft/cli/verbs/bench_verb.py"  # as where a wheel is installed
sys.exit(main([sys.argv[1]]))
"""


@pytest.mark.parametrize(("verb", "package"), [("bench", "benchmarks"), ("validate", "validation")])
def test_without_a_checkout_a_verb_says_where_its_work_is(tmp_path, verb, package):
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    done = subprocess.run(
        [sys.executable, "-c", CODE, verb],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 2
    assert f"python -m {package}" in done.stderr
