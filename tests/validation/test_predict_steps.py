"""Steps that others measured, predicted from their configuration."""

import pytest

from validation.predict_steps import step_targets


@pytest.mark.data
@pytest.mark.slow
def test_steps_of_others_are_within_the_limits(data):
    found = {target.name: target for target in step_targets(data)}
    means = [target for name, target in found.items() if "geomean" in name]
    assert len(means) == 2
    assert all(target.met for target in means)
    assert not any(target.fitted for target in found.values())


def test_without_the_tables_there_is_nothing_to_say(tmp_path):
    assert not list(step_targets(tmp_path))
