"""Changes are wrong, one at a time, and leave messages and types alone."""

from __future__ import annotations

import ast

import pytest

from tests.mutation.sites import mutated, sites

SOURCE = '''
LIMIT: int = 3

def total(values: list[int], most: int = 5) -> int:
    """Add 1 and 1."""
    found = 0
    for value in values:
        if value < most and not value % 2:
            found += value
    if found > 100:
        raise ValueError(f"{found + 1} is over {100}")
    return min(found, 7)
'''


def test_every_change_is_another_program():
    plain = ast.unparse(ast.parse(SOURCE))
    every = [ast.unparse(mutated(SOURCE, site.number)) for site in sites(SOURCE)]
    assert len(set(every)) == len(every)
    assert plain not in every
    assert len(every) > 10


def test_types_defaults_and_messages_are_left_alone():
    lines = {site.line for site in sites(SOURCE)}
    assert lines & {2, 4, 5, 11} == set()


def test_a_change_that_is_not_there_is_an_error():
    with pytest.raises(IndexError, match="no site"):
        mutated(SOURCE, 1000)
