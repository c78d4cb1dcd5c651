"""The table of c10d's collectives names what torch and the process group have."""

import pytest

torch = pytest.importorskip("torch")

from weft.torch import WeftProcessGroup  # noqa: E402
from weft.torch.c10d_collectives import BY_FUNCTIONAL_OP, COLLECTIVES  # noqa: E402

pytestmark = pytest.mark.torch
each = pytest.mark.parametrize("collective", COLLECTIVES, ids=lambda c: c.method)


@each
def test_the_process_group_has_the_method_under_both_names(collective):
    method = getattr(WeftProcessGroup, collective.method)
    assert method is not getattr(torch.distributed.ProcessGroup, collective.method, None)
    if collective.older_method:
        assert getattr(WeftProcessGroup, collective.older_method) is method


@each
def test_the_dispatcher_has_the_op(collective):
    assert hasattr(torch.ops.c10d, collective.op)


@pytest.mark.parametrize("name", BY_FUNCTIONAL_OP)
def test_the_functional_op_exists(name):
    assert hasattr(torch.ops._c10d_functional, name)
