"""Expressions over axes: constraints of a definition, and counts of operations. Evaluated by an allow-list."""

import ast
import operator
from collections.abc import Mapping

from ...errors import UserError

_BINARY = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.FloorDiv: operator.floordiv,
           ast.Mod: operator.mod}  # fmt: skip
_COMPARE = {ast.Eq: operator.eq, ast.NotEq: operator.ne, ast.Lt: operator.lt, ast.LtE: operator.le,
            ast.Gt: operator.gt, ast.GtE: operator.ge}  # fmt: skip
_HOW = "write integers, names of axes, + - * // %, comparisons, and, or"


class NotOverAxes(Exception):
    """The expression asks for more than axes: for values of an input, or for a call."""


def names(text: str) -> frozenset[str]:
    """The names in an expression."""
    return frozenset(node.id for node in ast.walk(ast.parse(text, mode="eval")) if isinstance(node, ast.Name))


def evaluate(text: str, axes: Mapping[str, int]) -> int | bool:
    """The value of `text` with the given sizes. Raises NotOverAxes, and UserError where it has no value."""
    try:
        return _value(ast.parse(text, mode="eval").body, axes)
    except ZeroDivisionError as error:
        raise UserError(f"{text!r}: division by zero at {dict(axes)}", _HOW) from error
    except (SyntaxError, RecursionError, MemoryError) as error:
        raise UserError(f"{text!r} is not an expression", _HOW) from error


def count(text: str, axes: Mapping[str, int], where: str) -> int:
    """A count that is not negative. Raises UserError that names `where` otherwise."""
    try:
        value = evaluate(text, axes)
    except NotOverAxes as error:
        raise UserError(f"{where}: {text!r}: {error}", _HOW) from error
    if isinstance(value, bool) or value < 0:
        raise UserError(f"{where}: {text!r} is {value}, no count", _HOW)
    return value


def _value(node: ast.expr, axes: Mapping[str, int]) -> int | bool:
    match node:
        case ast.Constant(value=bool(value) | int(value)):
            return value
        case ast.Name(id=name):
            if name not in axes:
                raise NotOverAxes(f"{name!r} is not an axis")
            return axes[name]
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _BINARY:
            return _BINARY[type(op)](_value(left, axes), _value(right, axes))
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_value(operand, axes)
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            return not _value(operand, axes)
        case ast.BoolOp(op=op, values=values):
            found = [bool(_value(value, axes)) for value in values]
            return all(found) if isinstance(op, ast.And) else any(found)
        case ast.Compare(left=left, ops=ops, comparators=right) if all(type(op) in _COMPARE for op in ops):
            sides = [_value(side, axes) for side in (left, *right)]
            pairs = zip(ops, sides, sides[1:], strict=False)
            return all(_COMPARE[type(op)](a, b) for op, a, b in pairs)
    raise NotOverAxes(f"{ast.unparse(node)!r} is more than an expression over axes")
