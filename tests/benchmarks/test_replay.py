"""The benchmark of replay says what it needs."""

import pytest

from benchmarks import Options, find_bench
from weft.errors import UsageError


def test_without_the_traces_it_says_where_they_are_looked_for(monkeypatch, tmp_path):
    monkeypatch.setenv("WEFT_DATA", str(tmp_path))
    with pytest.raises(UsageError, match="not here") as caught:
        list(find_bench("replay").run(Options()))
    assert "WEFT_DATA" in caught.value.hint
