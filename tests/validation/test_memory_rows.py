"""Memory of jobs that others measured: those that were fitted to and those that were not."""

import pytest

from validation.memory_rows import memory_targets


@pytest.mark.data
def test_memory_of_others_is_within_the_limits(data):
    found = {target.name.split(",")[0].split()[-1]: target for target in memory_targets(data)}
    assert {name for name, target in found.items() if target.fitted} == {"llama3-70b", "gpt"}
    for name in ("llama3-70b", "llama3-405b", "gpt", "moe", "bert"):
        assert found[name].met, name


def test_without_the_tables_there_is_nothing_to_say(tmp_path):
    assert not list(memory_targets(tmp_path))
