"""Arithmetic from an untrusted text: the expression is parsed to a tree and evaluated node by node, within limits.

Python itself evaluates nothing, so there is no sandbox to break out of. What remains is endless work (`9**9**9`): the
size of a result is estimated before it is computed.
"""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable

Number = int | float

LENGTH_LIMIT = 500  # characters
DIGITS_LIMIT = 300
BITS_LIMIT = 8_192  # about 2 500 digits; Python refuses to print more than 4 300

_BINARY: dict[type[ast.operator], Callable[[Number, Number], Number]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
}
_UNARY: dict[type[ast.unaryop], Callable[[Number], Number]] = {ast.UAdd: operator.pos, ast.USub: operator.neg}
_FUNCTIONS: dict[str, Callable[..., Number]] = {
    "abs": abs,
    "ceil": math.ceil,
    "cos": math.cos,
    "floor": math.floor,
    "log": math.log,
    "max": max,
    "min": min,
    "round": lambda number, digits=0: _rounded(number, digits),
    "sin": math.sin,
    "sqrt": math.sqrt,
    "tan": math.tan,
}
_CONSTANTS = {"pi": math.pi, "e": math.e}


def work_out(expression: str) -> Number:
    """Raises ValueError for what is no arithmetic, has no result, or is too large."""
    if len(expression) > LENGTH_LIMIT:
        raise ValueError(f"the expression has {len(expression)} characters; at most {LENGTH_LIMIT} are allowed")
    try:
        return _real(_value(ast.parse(expression.strip(), mode="eval").body))
    except SyntaxError as error:
        raise ValueError(f"this is not an expression: {error.msg}") from error
    except ZeroDivisionError as error:
        raise ValueError("division by zero") from error
    except (RecursionError, MemoryError) as error:
        raise ValueError("the expression is nested too deeply") from error
    except (OverflowError, TypeError) as error:
        raise ValueError(str(error)) from error


def _value(node: ast.expr) -> Number:
    match node:
        case ast.Constant(value=int() | float() as number) if not isinstance(number, bool):
            return _fitting(number)
        case ast.Name(id=name) if name in _CONSTANTS:
            return _CONSTANTS[name]
        case ast.UnaryOp(op=op, operand=operand) if type(op) in _UNARY:
            return _UNARY[type(op)](_value(operand))
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _BINARY:
            return _combined(op, _value(left), _value(right))
        case ast.Call(func=ast.Name(id=name), args=arguments, keywords=[]) if name in _FUNCTIONS:
            return _real(_FUNCTIONS[name](*[_value(argument) for argument in arguments]))
    known = ", ".join([*_FUNCTIONS, *_CONSTANTS])
    raise ValueError(f"cannot work out {ast.unparse(node)!r}; there are numbers, + - * / // % **, parentheses, {known}")


def _combined(op: ast.operator, left: Number, right: Number) -> Number:
    if isinstance(op, ast.Pow) and isinstance(left, int) and isinstance(right, int):
        _check_bits(left.bit_length() * max(0, right))
    return _fitting(_real(_BINARY[type(op)](left, right)))


def _rounded(number: Number, digits: Number) -> Number:
    if not isinstance(digits, int) or abs(digits) > DIGITS_LIMIT:  # round(5, -10**9) computes 10**10**9
        raise ValueError(f"round takes a whole number of digits, at most {DIGITS_LIMIT}")
    return round(number, digits) if digits else round(number)


def _fitting(number: Number) -> Number:
    if isinstance(number, int):
        _check_bits(number.bit_length())
    return number


def _check_bits(bits: int) -> None:
    if bits > BITS_LIMIT:
        raise ValueError("the result is too large")


def _real(number: object) -> Number:
    if isinstance(number, int) or (isinstance(number, float) and math.isfinite(number)):
        return number
    raise ValueError("the result is not a finite real number")
