"""Small wrong changes of a module: what a test that means something has to notice."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import dataclass

_OTHER: dict[type[ast.AST], type[ast.AST]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Add,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.Add,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.And: ast.Or,
    ast.Or: ast.And,
}
_SWAPPED = {"min": "max", "max": "min", "any": "all", "all": "any", "sorted": "list"}


@dataclass(frozen=True)
class Site:
    """A place in a module and what is changed there. ``number`` finds it again."""

    number: int
    line: int
    what: str


def sites(source: str) -> list[Site]:
    """List every change that can be made."""
    tree = ast.parse(source)
    return [Site(i, node.lineno, what) for i, (node, what) in enumerate(_places(tree))]


def mutated(source: str, number: int) -> ast.Module:
    """Return the module with one change made."""
    tree = ast.parse(source)
    for i, (node, _) in enumerate(_places(tree)):
        if i == number:
            _change(node)
            return ast.fix_missing_locations(tree)
    message = f"there is no site {number}"
    raise IndexError(message)


def _places(tree: ast.Module) -> Iterator[tuple[ast.expr | ast.stmt, str]]:
    for node in _walk(tree):
        before = ast.unparse(node)
        after = deepcopy(node)
        if _change(after) and ast.unparse(after) != before:
            yield node, f"{_short(before)}  ->  {_short(ast.unparse(after))}"


def _walk(tree: ast.AST) -> Iterator[ast.expr | ast.stmt]:
    """Walk over code that runs in functions: no annotations, decorators, docstrings, messages."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Raise | ast.Assert | ast.JoinedStr | ast.Import | ast.ImportFrom):
            continue
        if isinstance(node, ast.FunctionDef):
            for inner in node.body:
                yield from _inside(inner)
        elif isinstance(node, ast.ClassDef | ast.If):
            yield from _walk(node)


def _inside(node: ast.AST) -> Iterator[ast.expr | ast.stmt]:
    if isinstance(node, ast.Raise | ast.Assert | ast.JoinedStr | ast.arg):
        return
    if isinstance(node, ast.AnnAssign):
        if node.value is not None:
            yield from _inside(node.value)
        return
    if isinstance(node, ast.expr | ast.stmt):
        yield node
    for inner in ast.iter_child_nodes(node):
        yield from _inside(inner)


def _change(node: ast.AST) -> bool:
    """Make the one change that a kind of node gets; whether there is one."""
    match node:
        case ast.BinOp() | ast.AugAssign() if type(node.op) in _OTHER:
            node.op = _OTHER[type(node.op)]()  # type: ignore[assignment]
        case ast.BoolOp():
            node.op = _OTHER[type(node.op)]()  # type: ignore[assignment]
        case ast.Compare() if type(node.ops[0]) in _OTHER:
            node.ops = [_OTHER[type(node.ops[0])](), *node.ops[1:]]  # type: ignore[list-item]
        case ast.Constant(value=bool(value)):
            node.value = not value
        case ast.Constant(value=int(value) | float(value)):
            node.value = value + 1
        case ast.UnaryOp(op=ast.Not()):
            node.op, node.operand = ast.Not(), ast.UnaryOp(ast.Not(), node.operand)
        case ast.Call(func=ast.Name(id=name)) if name in _SWAPPED:
            node.func.id = _SWAPPED[name]  # type: ignore[attr-defined]
        case ast.If() | ast.IfExp():
            node.test = ast.UnaryOp(ast.Not(), node.test)
        case ast.Continue():
            return False
        case _:
            return False
    return True


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= 60 else line[:58] + ".."
