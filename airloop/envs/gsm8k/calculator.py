"""A calculator for agents: arithmetic on exact fractions, nothing else, and never more work than a moment.

An expression is parsed by Python's own parser and evaluated by walking its tree; names, attributes, strings and
calls other than round() and abs() have no meaning here. Length, size of numbers and powers are bounded before a
value is computed, so no expression can take time or memory. What cannot be computed is a CalculatorError whose
sentence says how to write it instead.
"""

from __future__ import annotations

import ast
import operator
import re
import warnings
from collections.abc import Callable
from decimal import Context, Decimal
from fractions import Fraction

MAX_CHARACTERS = 200
MAX_BITS = 256  # of a numerator or a denominator: numbers of up to 77 digits
MAX_ROUND = 20  # places of round()
DIGITS = 12  # of a result that is no whole number

_SIGNS = str.maketrans({"×": "*", "·": "*", "÷": "/", "−": "-", "–": "-", "^": "**", "$": " ", "€": " ", "£": " "})
_THOUSANDS = re.compile(r"(?<=\d),(?=\d{3}(?!\d))")
_PERCENT = re.compile(r"(\d+(?:\.\d+)?|\.\d+)\s*%(?!\s*[\d.(])")
_OPERATORS: dict[type[ast.operator], Callable[[Fraction, Fraction], Fraction | int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}


class CalculatorError(Exception):
    """`str()` tells the agent what is wrong and what to write."""


def calculate(expression: str) -> str:
    """The value of an arithmetic expression, written as a person would: 42, 2.5, 3.33333333333."""
    if len(expression) > MAX_CHARACTERS:
        raise CalculatorError(f"The expression is longer than {MAX_CHARACTERS} characters. Compute it in parts.")
    text = _PERCENT.sub(r"(\1/100)", _THOUSANDS.sub("", expression.translate(_SIGNS))).strip()
    if not text:
        raise CalculatorError("The expression is empty. Write one like 16 - 3 * 4.")
    if "=" in text:
        raise CalculatorError("Write only what is to be computed, without '=': for instance 16 - 3 * 4.")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Python's advice on "2(3)" is not for our log
            tree = ast.parse(re.sub(r"(?<![\d.])0+(?=\d)", "", text), mode="eval")
        return write(_value(tree.body))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise CalculatorError(
            f"{_short(expression)} is not an arithmetic expression. Use numbers, + - * / ** and brackets."
        ) from None


def write(value: Fraction) -> str:
    if value.denominator == 1:
        return str(value.numerator)
    context = Context(prec=DIGITS)
    rounded = context.divide(Decimal(value.numerator), Decimal(value.denominator))
    return format(rounded.normalize(context), "f")


def _value(node: ast.expr) -> Fraction:
    match node:
        case ast.Constant(value=int() | float() as number) if not isinstance(number, bool):
            return _bounded(Fraction(str(number)))
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_value(operand)
        case ast.UnaryOp(op=ast.UAdd(), operand=operand):
            return _value(operand)
        case ast.BinOp(left=left, op=ast.Pow(), right=right):
            return _power(_value(left), _value(right))
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
            return _combine(_OPERATORS[type(op)], _value(left), _value(right))
        case ast.Call(func=ast.Name(id="abs"), args=[argument], keywords=[]):
            return abs(_value(argument))
        case ast.Call(func=ast.Name(id="round"), args=[argument], keywords=[]):
            return _round(_value(argument), 0)
        case ast.Call(func=ast.Name(id="round"), args=[argument, ast.Constant(value=int(places))], keywords=[]):
            return _round(_value(argument), max(-MAX_ROUND, min(places, MAX_ROUND)))
        case ast.Name(id=name):
            raise CalculatorError(f"{_short(name)} is not a number. Write its value in its place.")
        case ast.Tuple():
            raise CalculatorError("One expression at a time, and no commas between numbers.")
    raise CalculatorError("Only numbers, + - * / // % **, brackets, round() and abs() can be computed.")


def _combine(do: Callable[[Fraction, Fraction], Fraction | int], left: Fraction, right: Fraction) -> Fraction:
    try:
        return _bounded(Fraction(do(left, right)))
    except ZeroDivisionError:
        raise CalculatorError("This divides by zero. Check which number is the divisor.") from None


def _power(base: Fraction, exponent: Fraction) -> Fraction:
    """Whole exponents only, and the size is known before anything is computed."""
    if exponent.denominator != 1:
        raise CalculatorError("Powers need a whole number as exponent.")
    if base == 0 and exponent < 0:
        raise CalculatorError("This divides by zero. Check which number is the divisor.")
    bits = max(base.numerator.bit_length(), base.denominator.bit_length())
    if abs(base) != 1 and base != 0 and bits * abs(exponent) > 4 * MAX_BITS:
        raise CalculatorError("The result of this power is too large.")
    if abs(base) == 1:
        return base if exponent % 2 else Fraction(1)
    return _bounded(Fraction(base ** int(exponent)) if base or exponent == 0 else Fraction(0))


def _round(value: Fraction, places: int) -> Fraction:
    """Halves go away from zero, as people round."""
    scale = Fraction(10) ** places
    whole = (abs(value) * scale + Fraction(1, 2)) // 1
    return Fraction(whole if value >= 0 else -whole) / scale


def _bounded(value: Fraction) -> Fraction:
    if max(value.numerator.bit_length(), value.denominator.bit_length()) > MAX_BITS:
        raise CalculatorError("The numbers become too large. Round on the way, for instance round(1/3, 6).")
    return value


def _short(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= 40 else text[:39] + "…"
