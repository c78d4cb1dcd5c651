import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.report.packing import pack, script_json, unpack

HOSTILE = "</script><script>alert(1)</script><!-- & \u2028 \ud800 \x00 \"'"


@given(st.lists(st.integers(0, 2**53)))
def test_numbers_come_back(numbers):
    assert unpack(pack(numbers)) == numbers


def test_small_numbers_take_a_byte_each():
    assert len(pack([1] * 300)) == 400  # base64 writes three bytes as four letters


def test_a_negative_number_is_not_packed():
    with pytest.raises(AssertionError, match="never negative"):
        pack([1, -1])


@given(st.dictionaries(st.text(), st.text() | st.floats(allow_nan=False, allow_infinity=False)))
def test_json_in_a_page_means_the_same_and_cannot_end_its_element(value):
    text = script_json(value | {"hostile": HOSTILE})
    assert not set("<>&") & set(text)
    assert json.loads(text) == value | {"hostile": HOSTILE}
