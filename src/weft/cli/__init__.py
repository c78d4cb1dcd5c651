"""The command ``weft``: a few verbs, each a question a user has."""

import contextlib
import io
import os
import sys
from collections.abc import Sequence

from weft.cli.app import app
from weft.cli.failure import exit_code_of, explain

__all__ = ["app", "main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Answer one command line and give the exit code: 0 done, 1 no, 2 wrong usage."""
    _print_anything()
    try:
        code = app(args=arguments, prog_name="weft", standalone_mode=False)
        sys.stdout.flush()
    except BrokenPipeError:  # the reader, such as head, has enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except (KeyboardInterrupt, Exception) as error:
        code = exit_code_of(error)
        if code is None:
            raise
        with contextlib.suppress(BrokenPipeError):
            sys.stderr.write(explain(error))
    return code if isinstance(code, int) else 0


def _print_anything() -> None:
    """Let a terminal show a question mark for what it has no letter for.

    A table's ticks on an ASCII terminal, or the name of a file that is no UTF-8, are no reason
    to end without an answer.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
