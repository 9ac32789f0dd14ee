"""Compiled expressions: nodes that are built from the leaves up.

A node holds a function of a message's properties text. A condition is true, false or unknown (None), as in SQL; a
message matches if the whole expression is true. What Java rejects when it compiles is an ExpressionError; what Java
throws when it evaluates is NotComparable.

Source: the classes of filter/expression, apache/rocketmq filter/.
"""

import operator
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any, Final

from ..moments import LONG_MAX
from ..properties import find_property
from .numbers import (
    INTEGER_MAX,
    INTEGER_MIN,
    LONG_MIN,
    Long,
    NotComparable,
    Value,
    compare,
    compare_doubles,
    equals,
    parse_double,
    parse_whole,
)

DEPTH_MAX: Final = 200  # depth of nested nodes; evaluation needs one call per level
_LONG_DIGITS_MAX: Final = len(str(LONG_MAX))
DOUBLE_MAX: Final = 1.7976931348623157e308
DOUBLE_MIN: Final = 4.9e-324  # Java's smallest positive double; 0.0 is smaller and refused

Evaluate = Callable[[bytes], Value]
Test = Callable[[Any, Any], bool]


class ExpressionError(Exception):
    """The expression is not a valid filter."""


class ExpressionKind(Enum):
    """The kind of a node, which decides where it may be used."""

    CONSTANT = auto()
    TRUTH = auto()  # TRUE, FALSE, NULL: a constant and a condition
    PROPERTY = auto()
    CONDITION = auto()
    EITHER = auto()  # a condition: OR of its tests
    BOTH = auto()  # a condition: AND of its tests
    NUMBER = auto()  # a negated value


_CONDITIONS: Final = (ExpressionKind.TRUTH, ExpressionKind.CONDITION, ExpressionKind.EITHER, ExpressionKind.BOTH)
_CONSTANTS: Final = (ExpressionKind.CONSTANT, ExpressionKind.TRUTH)


@dataclass(slots=True, eq=False)
class Expression:
    """A part of an expression.

    size: number of nodes. value: of a constant. name: of a property. tests: operands of EITHER and BOTH.
    """

    kind: ExpressionKind
    evaluate: Evaluate
    text: str
    depth: int = 1
    size: int = 1
    value: Value = None
    name: bytes = b""
    tests: list[Evaluate] = field(default_factory=list)

    @property
    def is_constant(self) -> bool:
        return self.kind in _CONSTANTS


def _condition(evaluate: Evaluate, text: str, *below: Expression) -> Expression:
    return Expression(ExpressionKind.CONDITION, evaluate, text[:80], _depth(below), _size(below))


def _depth(below: tuple[Expression, ...]) -> int:
    depth = 1 + max(node.depth for node in below)
    if depth > DEPTH_MAX:
        raise ExpressionError(f"found an expression nested more than {DEPTH_MAX} levels deep, expected fewer levels")
    return depth


def _size(below: tuple[Expression, ...]) -> int:
    return 1 + sum(node.size for node in below)


# Leaves.


def text_constant(text: str) -> Expression:
    return Expression(ExpressionKind.CONSTANT, lambda _: text, f"'{text}'", value=text)


def whole_constant(image: str) -> Expression:
    """A decimal literal, optionally with the suffix L: Integer if it fits, else Long."""
    digits = image.rstrip("lL")
    if len(digits) > _LONG_DIGITS_MAX or (number := int(digits)) > LONG_MAX:
        raise ExpressionError(f"found the number {image:.40}, expected at most {LONG_MAX}")
    value = number if number <= INTEGER_MAX else Long(number)
    return Expression(ExpressionKind.CONSTANT, lambda _: value, image, value=value)


def float_constant(image: str) -> Expression:
    value = float(image)
    if not DOUBLE_MIN <= value <= DOUBLE_MAX:
        raise ExpressionError(f"found the number {image:.40}, expected {DOUBLE_MIN} to {DOUBLE_MAX}: write 0 for zero")
    return Expression(ExpressionKind.CONSTANT, lambda _: value, image, value=value)


def truth_constant(value: bool | None) -> Expression:
    return Expression(
        ExpressionKind.TRUTH, lambda _: value, "NULL" if value is None else str(value).upper(), value=value
    )


def property_value(name: str) -> Expression:
    key = name.encode()
    find = _finder(key)

    def evaluate(properties: bytes) -> Value:
        found = find(properties)
        return None if found is None else str(found, "utf-8", "replace")

    return Expression(ExpressionKind.PROPERTY, evaluate, name, name=key)


def _finder(name: bytes) -> Callable[[bytes], bytes | None]:
    """Return `find_property` for one name, with the work that depends only on the name done once."""
    head = name + b"\x01"
    mark = b"\x02" + head
    skip = len(mark)

    def find(properties: bytes) -> bytes | None:
        at = properties.rfind(mark) + skip
        if at < skip:  # absent, or the first property
            if not properties.startswith(head):
                return None
            at = skip - 1
        end = properties.find(b"\x02", at)
        return properties[at:end] if end > at else find_property(properties, name)

    return find


# Signs and logic.


def negative(node: Expression) -> Expression:
    """Minus: null unless the operand is a number. A property is text, so its negation is null."""
    evaluate = node.evaluate

    def negate(properties: bytes) -> Value:
        value = evaluate(properties)
        if isinstance(value, bool) or not isinstance(value, int | float):
            return None
        return Long(-value) if isinstance(value, Long) else -value

    return Expression(ExpressionKind.NUMBER, negate, f"-{node.text}"[:80], _depth((node,)), _size((node,)))


def as_condition(node: Expression) -> Expression:
    """Return the node as a condition. A property alone never matches: its value is text, not a boolean."""
    if node.kind in _CONDITIONS:
        return node
    if node.kind is not ExpressionKind.PROPERTY:
        raise ExpressionError(f"found {node.text}, expected a condition, such as {node.text} = property")
    find = _finder(node.name)

    def cast(properties: bytes) -> Value:
        return None if find(properties) is None else False

    return _condition(cast, node.text, node)


def negation(node: Expression) -> Expression:
    inner = as_condition(node)
    evaluate = inner.evaluate

    def negate(properties: bytes) -> Value:
        value = evaluate(properties)
        return None if value is None else not value

    return _condition(negate, f"NOT {node.text}", inner)


def either(left: Expression, right: Expression) -> Expression:
    """OR. A chain is one node, so that it does not add depth."""
    if left.kind is ExpressionKind.EITHER:
        return _longer(left, right)
    tests = [as_condition(left).evaluate, as_condition(right).evaluate]

    def evaluate(properties: bytes) -> Value:
        result: Value = False
        for test in tests:
            value = test(properties)
            if value:
                return True
            if value is None:
                result = None
        return result

    below = (left, right)
    text = f"{left.text} OR {right.text}"[:80]
    return Expression(ExpressionKind.EITHER, evaluate, text, _depth(below), _size(below), tests=tests)


def both(left: Expression, right: Expression) -> Expression:
    """AND. A chain is one node, so that it does not add depth."""
    if left.kind is ExpressionKind.BOTH:
        return _longer(left, right)
    tests = [as_condition(left).evaluate, as_condition(right).evaluate]

    def evaluate(properties: bytes) -> Value:
        result: Value = True
        for test in tests:
            value = test(properties)
            if value is None:
                result = None
            elif not value:
                return False
        return result

    below = (left, right)
    text = f"{left.text} AND {right.text}"[:80]
    return Expression(ExpressionKind.BOTH, evaluate, text, _depth(below), _size(below), tests=tests)


def _longer(chain: Expression, link: Expression) -> Expression:
    """Append to a chain in place: the parser uses each node once."""
    chain.tests.append(as_condition(link).evaluate)
    chain.depth = max(chain.depth, _depth((link,)))
    chain.size += link.size
    return chain


# Comparisons.

_ORDERS: Final[dict[str, Test]] = {
    ">": operator.gt,
    ">=": operator.ge,
    "<": operator.lt,
    "<=": operator.le,
}


def equal(left: Expression, right: Expression) -> Expression:
    for node in (left, right):
        if node.is_constant and node.value is None:
            raise ExpressionError("found = or <> with NULL, expected IS NULL or IS NOT NULL")
    if left.kind is ExpressionKind.TRUTH and right.kind is ExpressionKind.CONSTANT:
        raise ExpressionError(f"found {left.text} = {right.text}, expected two values of the same type")
    text = f"{left.text} = {right.text}"
    if left.kind is ExpressionKind.PROPERTY and right.kind is ExpressionKind.CONSTANT:
        return _condition(_property_test(left.name, operator.eq, right.value), text, left, right)
    return _condition(_equality(left.evaluate, right.evaluate), text, left, right)


def _equality(left: Evaluate, right: Evaluate) -> Evaluate:
    return lambda properties: equals(left(properties), right(properties))


def not_equal(left: Expression, right: Expression) -> Expression:
    return negation(equal(left, right))


def is_null(node: Expression) -> Expression:
    if node.kind is ExpressionKind.PROPERTY:
        find = _finder(node.name)
        return _condition(lambda properties: find(properties) is None, f"{node.text} IS NULL", node)
    evaluate = node.evaluate
    return _condition(lambda properties: evaluate(properties) is None, f"{node.text} IS NULL", node)


def is_not_null(node: Expression) -> Expression:
    return negation(is_null(node))


def ordered(left: Expression, symbol: str, right: Expression) -> Expression:
    """>, >=, <, <=: of numbers and properties only."""
    for node in (left, right):
        is_number = not isinstance(node.value, bool) and isinstance(node.value, int | float)
        if node.kind in _CONDITIONS or (node.is_constant and not is_number):
            raise ExpressionError(f"found {node.text} as an operand of {symbol}, expected a number or a property")
    test, text = _ORDERS[symbol], f"{left.text} {symbol} {right.text}"
    if left.kind is ExpressionKind.PROPERTY and right.kind is ExpressionKind.CONSTANT:
        return _condition(_property_test(left.name, test, right.value), text, left, right)
    return _condition(_order(left.evaluate, test, right.evaluate), text, left, right)


def _order(left: Evaluate, test: Test, right: Evaluate) -> Evaluate:
    def evaluate(properties: bytes) -> Value:
        first = left(properties)
        if first is None:
            return None
        second = right(properties)
        if second is None:
            return None
        if isinstance(first, str) and isinstance(second, str):
            return test(compare_doubles(parse_double(first), parse_double(second)), 0)
        return test(compare(first, second), 0)

    return evaluate


def _property_test(name: bytes, test: Test, value: Value) -> Evaluate:
    """Compare a property with a constant, the most frequent operation, by a direct function."""
    find = _finder(name)
    if isinstance(value, str):

        def is_text(properties: bytes) -> Value:
            found = find(properties)
            return None if found is None else str(found, "utf-8", "replace") == value

        return is_text
    if isinstance(value, float):

        def compares(properties: bytes) -> Value:
            found = find(properties)
            if found is None:
                return None
            return test(compare_doubles(parse_double(str(found, "utf-8", "replace")), value), 0)

        return compares
    least, most = (LONG_MIN, LONG_MAX) if isinstance(value, Long) else (INTEGER_MIN, INTEGER_MAX)

    def counts(properties: bytes) -> Value:
        found = find(properties)
        if found is None:
            return None
        if len(found) < 10 and found.isdigit():
            return test(int(found), value)
        return test(parse_whole(str(found, "utf-8", "replace"), least, most), value)

    return counts


def between(node: Expression, low: Expression, high: Expression) -> Expression:
    if low.is_constant and high.is_constant:
        if low.value is None or high.value is None:
            raise ExpressionError("found NULL as a bound of BETWEEN, expected numbers or properties")
        try:
            is_reversed = compare(high.value, low.value) < 0
        except NotComparable:
            is_reversed = True
        if is_reversed:
            raise ExpressionError(
                f"found BETWEEN {low.text} AND {high.text}, expected the smaller number first, and numbers only"
            )
    return _range(node, low, high) or both(ordered(node, ">=", low), ordered(node, "<=", high))


def not_between(node: Expression, low: Expression, high: Expression) -> Expression:
    inside = _range(node, low, high)
    return negation(inside) if inside else either(ordered(node, "<", low), ordered(node, ">", high))


def _range(node: Expression, low: Expression, high: Expression) -> Expression | None:
    """Return BETWEEN of a property and two Integers as one test that reads the property once; None for other
    operands."""
    least, most = low.value, high.value
    if node.kind is not ExpressionKind.PROPERTY or type(least) is not int or type(most) is not int:
        return None
    find = _finder(node.name)

    def is_between(properties: bytes) -> Value:
        found = find(properties)
        if found is None:
            return None
        if len(found) < 10 and found.isdigit():
            return least <= int(found) <= most
        return least <= parse_whole(str(found, "utf-8", "replace"), INTEGER_MIN, INTEGER_MAX) <= most

    return _condition(is_between, f"{node.text} BETWEEN {low.text} AND {high.text}", node, low, high)


# Texts.


def one_of(node: Expression, texts: list[str], *, is_negated: bool) -> Expression:
    if node.kind is not ExpressionKind.PROPERTY:
        raise ExpressionError(f"found {node.text} before IN, expected a property")
    find, allowed = _finder(node.name), frozenset(texts)

    def evaluate(properties: bytes) -> Value:
        found = find(properties)
        return None if found is None else (str(found, "utf-8", "replace") in allowed) is not is_negated

    return _condition(evaluate, f"{node.text} IN (…)", node)


_TEXT_TESTS: Final[dict[str, Callable[[str, str], bool]]] = {
    "CONTAINS": lambda value, search: search in value,
    "STARTSWITH": str.startswith,
    "ENDSWITH": str.endswith,
}


def text_test(node: Expression, name: str, search: str, *, is_negated: bool) -> Expression:
    """CONTAINS, STARTSWITH, ENDSWITH and their negations: false for values other than texts, and for an empty
    search."""
    test, inner = _TEXT_TESTS[name], node.evaluate

    def evaluate(properties: bytes) -> Value:
        if not search:
            return False
        value = inner(properties)
        return isinstance(value, str) and test(value, search) is not is_negated

    return _condition(evaluate, f"{node.text} {name} '{search}'", node)
