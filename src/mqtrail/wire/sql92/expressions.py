"""SQL92 expressions, compiled once.

    price > 10 AND region IN ('eu', 'us') AND coupon IS NOT NULL

Source: SqlFilter, SelectorParser, ExpressionMessageFilter, apache/rocketmq filter/ and broker/filter/.
"""

from functools import lru_cache
from typing import Final

from ..errors import SubscriptionParseFailed
from .nodes import Evaluate, ExpressionError
from .numbers import NotComparable

COMPILED_MAX: Final = 1_024  # compiled expressions in the cache, invalid ones included


class SqlExpression:
    """A compiled expression. size: its number of nodes; each costs about a microsecond per message."""

    __slots__ = ("_evaluate", "size", "text")

    def __init__(self, text: str, evaluate: Evaluate, size: int = 1) -> None:
        self.text = text
        self.size = size
        self._evaluate = evaluate

    def matches(self, properties: bytes) -> bool:
        """Return whether the expression is true for a message with this properties text.

        Unknown (a missing property) and NotComparable (a property that is not a number) count as false.
        """
        try:
            return self._evaluate(properties) is True
        except NotComparable:
            return False


def compile_sql(expression: str) -> SqlExpression:
    """Return the compiled expression, from a cache if possible. SubscriptionParseFailed names the position of the
    error."""
    found = _compile(expression)
    if isinstance(found, str):
        raise SubscriptionParseFailed(f"Invalid MessageSelector. {found}")
    return found


@lru_cache(maxsize=COMPILED_MAX)
def _compile(expression: str) -> SqlExpression | str:
    from .grammar import parse  # loads the parser generator only when it is needed

    try:
        node = parse(expression)
        return SqlExpression(expression, node.evaluate, node.size)
    except ExpressionError as error:
        return str(error)
