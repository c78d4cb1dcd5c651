import inspect
import pickle

import pytest

from weft import errors
from weft.errors import WeftError, nearest

TREE = [e for _, e in inspect.getmembers(errors, inspect.isclass) if issubclass(e, WeftError)]
BUILTINS = {
    errors.UsageError: ValueError,
    errors.SizeError: ValueError,
    errors.UnknownNameError: LookupError,
    errors.BagError: IndexError,
    errors.PlatformError: ValueError,
    errors.FormatError: ValueError,
    errors.NoPlanError: ValueError,
    errors.ScheduleError: ValueError,
    errors.RunError: RuntimeError,
    errors.RunTimeoutError: TimeoutError,
}


@pytest.mark.parametrize("error", TREE)
def test_an_error_says_what_is_wrong_and_what_to_do(error):
    raised = error("3 ranks do not divide 8 bytes", "Try: --ranks 4.")
    assert str(raised) == "3 ranks do not divide 8 bytes"
    assert raised.hint == "Try: --ranks 4."
    assert error("no way out").hint == ""
    assert len(error.__doc__.splitlines()) == 1


@pytest.mark.parametrize("error", TREE)
def test_an_error_survives_the_way_between_processes(error):
    back = pickle.loads(pickle.dumps(error("what", "do")))
    assert (type(back), str(back), back.hint) == (error, "what", "do")


@pytest.mark.parametrize("error", TREE)
def test_an_error_is_made_by_name_as_it_is_by_call(error):
    assert type(error.__new__(error)) is error


@pytest.mark.parametrize(("error", "builtin"), BUILTINS.items())
def test_an_error_is_the_builtin_a_caller_expects(error, builtin):
    assert issubclass(error, builtin)


def test_the_nearest_known_name_is_suggested():
    assert nearest("all_gater", ["all_reduce", "all_gather", "barrier"]) == (
        "Did you mean 'all_gather'?"
    )


def test_all_names_are_listed_when_none_is_near():
    assert nearest("xyz", ["tree", "ring"]) == "Known: ring, tree."


def test_nothing_is_suggested_when_nothing_is_known():
    assert nearest("xyz", []) == ""
