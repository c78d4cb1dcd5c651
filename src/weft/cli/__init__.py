"""The command ``weft``: a few verbs, each a question a user has."""

import contextlib
import os
import sys
from collections.abc import Sequence

from weft.cli.app import app
from weft.cli.failure import exit_code_of, explain

__all__ = ["app", "main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Answer one command line and give the exit code: 0 done, 1 no, 2 wrong usage."""
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
