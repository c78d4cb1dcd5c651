"""The host thread that serves a fused kernel."""

import pytest

torch = pytest.importorskip("torch")
pytestmark = [pytest.mark.torch, pytest.mark.triton]
pytest.importorskip("triton")

from weft.errors import RunTimeoutError  # noqa: E402
from weft.fused.torch_proxy import Outbox, in_background, send_slices  # noqa: E402


def test_a_slice_that_is_never_made_is_an_error():
    with pytest.raises(RunTimeoutError, match="slice 0 of a fused kernel timed out"):
        send_slices(Outbox(1), 1, lambda _rank, _part: torch.zeros(1), epoch=1, timeout=0.01)


def test_what_happens_in_the_background_is_told():
    def fail():
        message = "not today"
        raise ValueError(message)

    with pytest.raises(ValueError, match="not today"):
        in_background(fail)()


def test_an_entry_is_there_once_its_mark_is():
    outbox = Outbox(2)
    assert outbox.entry(0, 5) is None
    outbox.queue[0] = outbox.queue.new_tensor([5, 3, 7])
    assert outbox.entry(0, 5) == (3, 7)
    assert outbox.entry(0, 6) is None  # a later execution has not written it yet
