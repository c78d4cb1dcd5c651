"""Tables as Markdown keep every cell in its column."""

import re

from hypothesis import given
from hypothesis import strategies as st

from validation.markdown_tables import markdown_table
from weft.report.text import Column

COLUMNS = [Column("name", "name", right=False), Column("time", "time"), Column("gone", "gone")]


def test_a_table_has_titles_a_rule_and_rows():
    table = markdown_table(COLUMNS, [{"name": "ring", "time": 3}])
    assert table == "| name | time |\n| --- | --: |\n| ring | 3 |\n"


@given(st.lists(st.fixed_dictionaries({"name": st.text(min_size=1), "time": st.text()})))
def test_every_line_has_as_many_cells(rows):
    lines = markdown_table(COLUMNS, rows).splitlines()
    assert len({len(re.findall(r"(?<!\\)\|", line)) for line in lines}) == 1
