import re
import signal
import subprocess
import sys

import pytest

from weft.cli import main
from weft.cli.failure import exit_code_of, explain
from weft.errors import NoPlanError, RankDiedError, UsageError

COLLECTIVE = ("collective", "all_gather", "--on", "mi300x-8")


def refused(capsys, *arguments, code=2):
    """The lines on stderr of a command that must fail."""
    assert main([*map(str, arguments)]) == code
    written = capsys.readouterr()
    assert written.out == ""
    lines = written.err.splitlines()
    assert 1 <= len(lines) <= 2
    assert re.match(r"weft: \w+Error: .", lines[0])
    return lines


@pytest.mark.parametrize(
    ("arguments", "says", "hint"),
    [
        (("collective", "all_gathr"), "collective 'all_gathr'", "'all_gather'"),
        (("collective", "x", "--on", "cpu"), "collective 'x'", "Known: all_gather,"),
        ((*COLLECTIVE, "--algorithm", "tree"), "'tree' does not apply to all_gather", "ring"),
        ((*COLLECTIVE, "--algorithm", "rign"), "algorithm 'rign'", "ring"),
        ((*COLLECTIVE, "--size", "1001"), "all_gather: 1001 bytes are not divisible by 8", "1000"),
        ((*COLLECTIVE, "--size", "1001", "--algorithm", "ring"), "all_gather: 1001", "1008"),
        ((*COLLECTIVE, "--size", "ten"), "parse 'ten'", "Expected a size"),
        ((*COLLECTIVE, "--size", "-1"), "parse '-1'", "Expected a size"),
        ((*COLLECTIVE, "--size", "8KiB:1KiB"), "size range '8KiB:1KiB' is empty", "FIRST:LAST"),
        ((*COLLECTIVE, "--ranks", "0"), "least 2 ranks (got 0", ""),
        ((*COLLECTIVE, "--ranks", "1"), "least 2 ranks (got 1", ""),
        ((*COLLECTIVE, "--ranks", "-3"), "least 2 ranks (got -3", ""),
        ((*COLLECTIVE, "--ranks", "9"), "mi300x-8 has 8 ranks, 9 were asked for", "mi300x-8x2"),
        ((*COLLECTIVE, "--ranks", "two"), "'--ranks'", "weft collective --help"),
        (("collective", "all_gather"), "--on is missing", "weft platforms"),
        (("collective", "all_gather", "--on", "mi300-8"), "unknown platform 'mi300-8'", "mi300x-8"),
        (("collective", "all_gather", "--on", "no.toml"), "there is no file no.toml", ""),
        (
            ("collective", "all_gather", "--on", "switch(8)@-1GiB/s"),
            "-1GiB/s",
            "",
        ),
        (
            ("collective", "all_gather", "--on", "switch(8)@1GiB/s", "--algorithm", "dma"),
            "has no DMA engines",
            "mi300x-8",
        ),
        (
            ("collective", "all_gather", "--on", "mi300x-8x2", "--algorithm", "dma"),
            "one host",
            "at most 8 ranks",
        ),
        ((*COLLECTIVE, "-o", "trace.png"), "from 'trace.png'", ".json, .json.gz, .csv"),
        ((*COLLECTIVE, "-o", ".csv"), "from '.csv'", ".json, .json.gz, .csv"),
        ((*COLLECTIVE, "--algorithm", ",", "-o", "-"), "--algorithm: the list is empty", ""),
        (("copies", "--on", "mi300x-8", "--method", ""), "--method: the list is empty", ""),
        (("c3", "--on", "mi300x-8", "--gemm", ","), "--gemm: the list is empty", ""),
        (("c3", "--on", "mi300x-8", "--collective", ","), "--collective: the list is empty", ""),
        ((*COLLECTIVE, "-o", "nowhere/t.json"), "folder 'nowhere'", ""),
        (("colective",), "verb 'colective'", "Did you mean 'collective'?"),
        (("collective",), "Missing argument 'KIND'", "weft collective --help"),
        (("collective", "all_gather", "--onn", "x"), "No such option: --onn", "--help"),
        (("platforms", "mi300y-8"), "unknown platform 'mi300y-8'", "mi300x-8"),
        (("bench", "starup"), "benchmark 'starup'", "'startup'"),
        (("bench", "startup", "--ranks", "x"), "parse 'x'", "2,4,8"),
        (("bench", "startup", "--ranks", "0"), "--ranks must be > 0", ""),
        (("bench", "startup", "-o", "x.txt"), "from 'x.txt'", ".jsonl"),
        (("doctor", "--ranks", "0"), "'--ranks'", "weft doctor --help"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_wrong_input_is_answered_in_a_line_or_two(capsys, arguments, says, hint):
    lines = refused(capsys, *arguments)
    assert says in lines[0]
    assert hint in lines[-1]


def test_a_platform_file_with_a_negative_rate_is_refused(capsys, tmp_path):
    path = tmp_path / "wrong.toml"
    path.write_text('[[levels]]\nkind = "switch"\nsize = 8\nrate = "-4GB/s"\n')
    (line, *_) = refused(capsys, "collective", "all_gather", "--on", str(path))
    assert "levels.0.rate" in line
    assert "-4GB/s" in line


def test_a_size_of_zero_is_allowed(capsys):
    assert main([*COLLECTIVE, "--size", "0"]) == 0
    assert "0 B" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (UsageError("x"), 2),
        (NoPlanError("x"), 1),
        (RankDiedError("x"), 1),
        (KeyboardInterrupt(), 130),
        (OSError(28, "No space left on device"), 1),
        (OSError("x"), None),
        (ZeroDivisionError("x"), None),
    ],
)
def test_the_exit_code_says_whose_fault_it_is(error, code):
    assert exit_code_of(error) == code


def test_an_error_takes_one_line_however_long_its_message():
    text = explain(
        RankDiedError("rank 1 died.\n\nTraceback (most recent call last):\n  x", "Look.")
    )
    assert text == "weft: RankDiedError: rank 1 died.\nLook.\n"


def test_an_interrupt_says_nothing():
    assert explain(KeyboardInterrupt()) == ""


def test_a_fault_of_weft_keeps_its_traceback(monkeypatch):
    monkeypatch.setattr("weft.hardware.platform_names", lambda: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        main(["platforms"])


START = "import sys; from weft.cli import main; sys.exit(main(sys.argv[1:]))"


def test_control_c_ends_quietly_with_130():
    patch = (
        "import time, weft.cli.checkup as c\n"
        "c.examine = lambda n: (print('on', flush=True), time.sleep(60))\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", patch + START, "doctor"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "on\n"
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=30)
    assert (process.returncode, out, err) == (130, "", "")


def test_a_closed_pipe_is_no_error():
    command = f"{sys.executable} -c '{START}' platforms mi300x-8 | head -1"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=True)
    assert done.stderr == ""
    assert done.stdout.startswith("mi300x-8")


C3 = ("c3", "--gemm", "256x256x256", "--collective", "all_gather", "--size", "1GiB")


@pytest.mark.parametrize(
    ("verb", "table", "says"),
    [
        # Each was a traceback: quotients of nothing, numbers of ranks that no memory holds.
        (C3, "[[levels]]\nlatency = 1e300", "levels.0.latency = 1e+300: expected a time"),
        (C3, "[[levels]]\nrate = 0.001", "no gain to compare with"),
        (C3, "[device]\nmemory_rate = 1e290", "device.memory_rate = 1e+290: expected a positive"),
        (C3, "[[levels]]\nrate = 1e-300", "levels.0.rate = 1e-300: expected a positive rate"),
        (COLLECTIVE[:2], "[[levels]]\nsize = 2147483648", "at most 2.14748e+09"),
        (COLLECTIVE[:2], "[[levels]]\nsize = 2147483647", "has more than 1048576 ranks"),
        (COLLECTIVE[:2], "[device]\nunits = 1000000000", "device.units = 1000000000: expected"),
        (C3, "[device.dma]\nnum_engines = 1000000000000", "device.dma.num_engines"),
        (C3, "[device.kernels]\nl2_ways = 1000000000", "device.kernels.l2_ways = 1000000000"),
    ],
)
def test_numbers_that_no_machine_has_are_named(capsys, tmp_path, verb, table, says):
    file = tmp_path / "absurd.toml"
    file.write_text(f'extends = "mi300x-8"\n{table}\n')
    lines = refused(capsys, *verb, "--on", file)
    assert says in lines[0]


def test_an_error_does_not_repeat_escapes_of_a_name(capsys):
    assert main(["predict", "gpt\x1b[2J2", "--on", "h100-8"]) == 2
    said = capsys.readouterr().err
    assert "\x1b" not in said
    assert "x1b[2J" in said
