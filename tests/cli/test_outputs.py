"""Files that verbs write."""

import os
import subprocess
import sys

import pytest

from weft.cli import main

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


@pytest.mark.parametrize(
    "arguments",
    [
        ("platforms", "h100-8"),
        ("predict", "gpt2", "--on", "h100-8", "--set", "layers=2"),
        ("serve", "gpt2", "--on", "h100-8", "--set", "tp=1", "--requests", "2", "--generate", "4"),
        ("collective", "all_reduce", "--size", "64KiB", "--on", "h100-8", "--algorithm", "direct"),
    ],
)
def test_output_fits_a_terminal_of_80_columns(capsys, monkeypatch, arguments):
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("NO_COLOR", "1")
    assert main([*arguments]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines
    assert max(map(len, lines)) <= 80
