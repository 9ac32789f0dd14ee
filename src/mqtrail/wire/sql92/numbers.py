"""Values of expressions, and how Java converts and compares them: a property is a text, converted when compared.

    Java      here     conversion of a text
    Integer   int      Integer.valueOf: sign and digits, 32 bits
    Long      Long     Long.valueOf: sign and digits, 64 bits
    Double    float    Double.valueOf: decimal or hexadecimal, NaN, Infinity, a suffix f or d, blanks around
    Boolean   bool     Boolean.valueOf: "true" in any case, else false
    String    str

Source: ComparisonExpression.__compare, apache/rocketmq filter/; java.lang.Integer, Long, Double.
"""

import math
import re
from typing import Final, TypeAlias

from ..moments import LONG_MAX

INTEGER_MIN: Final = -(1 << 31)
INTEGER_MAX: Final = (1 << 31) - 1
LONG_MIN: Final = -LONG_MAX - 1

_WHOLE = re.compile(r"[+-]?\d+")
_DECIMAL = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
_HEXADECIMAL = re.compile(r"[+-]?0[xX](?:[0-9a-fA-F]+\.?|[0-9a-fA-F]*\.[0-9a-fA-F]+)[pP][+-]?[0-9]+")
_NAMED: Final = {"NaN": math.nan, "Infinity": math.inf}
_BLANKS: Final = "".join(map(chr, range(0x21)))  # characters that String.trim removes
_DIGITS_MAX: Final = 4_000  # digits of a number in a property; a longer one does not fit 64 bits


class Long(int):
    """A whole number of Java's type Long: a text compared with it is converted to 64 bits."""


Value: TypeAlias = str | int | float | bool | None


class NotComparable(Exception):
    """Java throws here (a property that is not a number, a boolean compared with a text): the message does not
    match."""


def parse_whole(text: str, least: int, most: int) -> int:
    """Convert text like Integer.valueOf or Long.valueOf. NotComparable: not a number, or out of range."""
    if (
        len(text) > _DIGITS_MAX
        or _WHOLE.fullmatch(text) is None
        or not (text.isascii() or all(ord(one) < 0x10000 for one in text))
    ):
        raise NotComparable
    number = int(text)
    if not least <= number <= most:
        raise NotComparable
    return number


def parse_double(text: str) -> float:
    """Convert text like Double.valueOf. NotComparable: not a number."""
    text = text.strip(_BLANKS)
    if len(text) > _DIGITS_MAX:
        raise NotComparable
    plain = text[:-1] if text[-1:] in ("f", "F", "d", "D") else text
    if _DECIMAL.fullmatch(plain) is not None:
        return float(plain)
    if _HEXADECIMAL.fullmatch(plain) is not None:
        try:
            return float.fromhex(plain)
        except OverflowError:
            return -math.inf if plain[0] == "-" else math.inf
    named = _NAMED.get(text[1:] if text[:1] in ("+", "-") else text)
    if named is None:
        raise NotComparable
    return -named if text[0] == "-" else named


def compare_doubles(left: float, right: float) -> int:
    """Return the sign of Double.compareTo: NaN equals NaN and is greater than all others, -0.0 is less than 0.0."""
    if left < right:
        return -1
    if left > right:
        return 1
    if left == right:
        return 0 if left else int(math.copysign(1.0, left) > 0) - int(math.copysign(1.0, right) > 0)
    return int(math.isnan(left)) - int(math.isnan(right))


def compare(left: Value, right: Value) -> int:
    """Return the sign of comparing left with right, neither of them null. A text is converted to the type of the other.

    -1 if the types cannot be compared. NotComparable: the text cannot be converted, or left is a boolean.
    """
    kind = type(left)
    if kind is not type(right):
        if isinstance(left, str):
            kind = type(right)
            left = _read(left, kind)
        elif isinstance(right, str):
            if kind is bool:
                raise NotComparable
            right = _read(right, kind)
        elif kind is bool or isinstance(right, bool):
            return -1
        elif kind is float or isinstance(right, float):
            kind = float
            left, right = float(left or 0), float(right or 0)
    if kind is float:
        return compare_doubles(left, right)  # type: ignore[arg-type]  # both are floats now
    return int(left > right) - int(left < right)  # type: ignore[operator]  # both are of one kind


def _read(text: str, kind: type) -> Value:
    if kind is int:
        return parse_whole(text, INTEGER_MIN, INTEGER_MAX)
    if kind is Long:
        return parse_whole(text, LONG_MIN, LONG_MAX)
    if kind is float:
        return parse_double(text)
    return text.lower() == "true"


def equals(left: Value, right: Value) -> bool | None:
    """Return whether left = right: unknown if only left is null, false if only right is null, true for two nulls."""
    if left is None:
        return True if right is None else None
    if right is None:
        return False
    if type(left) is str and type(right) is str:
        return left == right
    return compare(left, right) == 0
