"""Files that verbs write."""

import os
import subprocess
import sys

import pytest

VERBS = {
    "predict": ("predict", "gpt2", "--on", "h100-8"),
    "plan": ("plan", "gpt2", "--on", "h100-8", "--all"),
    "collective": ("collective", "all_reduce", "--on", "h100-8", "--size", "1MiB"),
    "kernel": ("kernel", "gemm", "m=512", "n=512", "k=512", "--on", "h100-8"),
}


@pytest.mark.parametrize("words", VERBS.values(), ids=VERBS)
def test_a_file_is_written_although_nobody_reads_the_output(tmp_path, words):
    path = tmp_path / "rows.csv"
    reader, writer = os.pipe()
    os.close(reader)  # as head does once it has enough lines
    try:
        command = [sys.executable, "-m", "weft", *words, "-o", str(path)]
        subprocess.run(command, stdout=writer, stderr=subprocess.DEVNULL, timeout=100, check=False)
    finally:
        os.close(writer)
    assert path.read_text().count("\n") >= 2
