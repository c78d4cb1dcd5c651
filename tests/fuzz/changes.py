"""New inputs out of old ones: of bytes, of lines, and of trees where an input is JSON."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from copy import deepcopy
from typing import Any

ODD_VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, 1, -1, 2, 0.0, -0.5, 1e308, -1e308, 1e-320),
    *(2**31, 2**32, 2**53 + 1, 2**63 - 1, 2**63, -(2**63), 2**64, 10**30),
    *("", "0", "-1", "1e999", "nan", "x" * 300, "\0", "\ud800", "é", "2GiB", "../..", "float32"),
    *([], {}, [[]], [None], {"": {}}, [0] * 70, {"kind": "Copy"}),
)
_ODD_TEXTS = (
    b"nan",
    b"inf",
    b"-1",
    b"0",
    b"1e999",
    b"[]",
    b"{}",
    b'""',
    b"true",
    b"9" * 400,
    b"[" * 3000,
)


def changed(dice: random.Random, corpus: Sequence[bytes], words: Sequence[bytes]) -> bytes:
    """Return a neighbour of some input of the corpus."""
    given = dice.choice(corpus)
    if dice.random() < 0.5:
        tree = _tree(given)
        if isinstance(tree, (dict, list)) and tree:
            return _tree_changed(dice, tree)
    for _ in range(1 << dice.randrange(4)):
        given = dice.choice((_bytes_changed, _line_changed))(dice, given, corpus, words)
    return given


def _tree(given: bytes) -> Any:
    try:
        return json.loads(given)
    except (ValueError, RecursionError):
        return None


def _tree_changed(dice: random.Random, tree: Any) -> bytes:
    for _ in range(1 << dice.randrange(3)):
        _change_inside(dice, tree)
    return json.dumps(tree).encode()


def _change_inside(dice: random.Random, tree: Any) -> None:
    """Walk down to a random depth, and replace, remove, double or move what is there."""
    while True:
        keys = list(tree) if isinstance(tree, dict) else list(range(len(tree)))
        if not keys:
            return
        key = dice.choice(keys)
        inner = tree[key]
        if isinstance(inner, (dict, list)) and inner and dice.random() < 0.8:
            tree = inner
            continue
        match dice.randrange(5):
            case 0:
                del tree[key]
            case 1 if isinstance(tree, list):
                tree.append(deepcopy(inner))
            case 2:
                tree[key] = deepcopy(tree[dice.choice(keys)])
            case 3 if isinstance(inner, int) and not isinstance(inner, bool):
                tree[key] = inner + dice.choice((-1, 1, 7, -inner * 2))
            case _:
                tree[key] = deepcopy(dice.choice(ODD_VALUES))
        return


def _bytes_changed(
    dice: random.Random, given: bytes, corpus: Sequence[bytes], words: Sequence[bytes]
) -> bytes:
    at = dice.randrange(len(given) + 1)
    until = min(len(given), at + dice.choice((0, 1, 1, 4, 16, 100)))
    other = dice.choice(corpus)
    start = dice.randrange(len(other) + 1)
    put = dice.choice(
        (
            b"",
            bytes([dice.randrange(256)]),
            dice.randbytes(4),
            other[start : start + dice.randrange(64)],
            given[at:until] * 2,
            dice.choice(words or (b"",)),
            dice.choice(_ODD_TEXTS),
        )
    )
    return given[:at] + put + given[until:]


def _line_changed(
    dice: random.Random, given: bytes, corpus: Sequence[bytes], words: Sequence[bytes]
) -> bytes:
    lines = given.splitlines(keepends=True)
    if not lines:
        return given
    at = dice.randrange(len(lines))
    key, sign, _ = lines[at].partition(b"=")
    match dice.randrange(5):
        case 0:
            del lines[at]
        case 1:
            lines.insert(at, dice.choice(lines))
        case 2:
            lines.insert(at, dice.choice(dice.choice(corpus).splitlines(keepends=True) or [b""]))
        case 3 if sign:
            lines[at] = key + b"= " + dice.choice((*_ODD_TEXTS, *words)) + b"\n"
        case _:
            del lines[at + 1 :]
    return b"".join(lines)
