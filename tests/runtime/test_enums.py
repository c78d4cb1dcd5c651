from weft import _core
from weft.schedule import CommandKind


def test_the_kinds_of_commands_have_the_same_numbers_in_python_and_in_the_native_core():
    native = {name: int(kind) for name, kind in _core.CommandKind.__members__.items()}
    assert native == {kind.name: kind.value for kind in CommandKind}
