"""The command ``weft``: one verb per question."""

import contextlib
import io
import os
import sys
from collections.abc import Sequence

from weft.cli.app import app
from weft.cli.failure import exit_code_of, explain

__all__ = ["app", "main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command line and return the exit code: 0 success, 1 negative, 2 usage error."""
    # Table ticks on an ASCII terminal, or a file name that is not UTF-8, must not end the command:
    # what the terminal cannot encode becomes a question mark.
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    try:
        code = app(args=arguments, prog_name="weft", standalone_mode=False)
        sys.stdout.flush()
    except BrokenPipeError:  # the reader, such as head, has closed the pipe
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except (KeyboardInterrupt, Exception) as error:
        code = exit_code_of(error)
        if code is None:
            raise
        with contextlib.suppress(BrokenPipeError):
            sys.stderr.write(explain(error))
    return code if isinstance(code, int) else 0
