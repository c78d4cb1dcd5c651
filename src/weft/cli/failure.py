"""Maps errors to their message on stderr and to the exit code."""

from typing import Any

import typer

from weft.errors import NoPlanError, ReplayError, RunError, UnknownNameError, WeftError, nearest
from weft.units import printable

NO, WRONG_USAGE, INTERRUPTED = 1, 2, 130
_REFUSALS = (NoPlanError, ReplayError, RunError)  # valid question, negative answer


def exit_code_of(error: BaseException) -> int | None:
    """Return the exit code of an error; None for bugs of weft itself."""
    match error:
        case KeyboardInterrupt() | typer.Abort():
            return INTERRUPTED
        case WeftError():
            return NO if isinstance(error, _REFUSALS) else WRONG_USAGE
        case OSError() if error.strerror:  # a full disk, a read-only folder
            return NO
        # An error of typer, whose classes are private in some versions.
        case _ if hasattr(error, "format_message") and hasattr(error, "exit_code"):
            return WRONG_USAGE
        case _:
            return None


def explain(error: BaseException) -> str:
    """Return one line that states the problem, and a second that says what to do."""
    if exit_code_of(error) == INTERRUPTED:
        return ""
    if isinstance(error, WeftError):
        return _lines(type(error).__name__, str(error).split("\n\n")[0], error.hint)
    if isinstance(error, OSError):
        where = f"{error.filename}: " if error.filename else ""
        return _lines(type(error).__name__, f"{where}{error.strerror}", "")
    wrong: Any = error
    context = getattr(wrong, "ctx", None)
    path = context.command_path if context else "weft"
    return _lines("UsageError", wrong.format_message(), f"Try: {path} --help")


def _lines(name: str, message: str, hint: str) -> str:
    first = f"weft: {name}: {_one_line(message)}\n"
    return first + (f"{_one_line(hint)}\n" if hint else "")


def _one_line(text: str) -> str:
    return printable(" ".join(text.split()))


def unknown_verb(name: str, verbs: list[str]) -> WeftError:
    """Return the error for an unknown verb."""
    return UnknownNameError(f"unknown verb {name!r}", nearest(name, verbs))
