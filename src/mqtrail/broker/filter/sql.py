"""SQL92 expressions, compiled once.

    price > 10 AND region IN ('eu', 'us') AND coupon IS NOT NULL

Source: SqlFilter, SelectorParser, ExpressionMessageFilter, apache/rocketmq filter/ and broker/filter/.
"""

from functools import lru_cache
from typing import Final

from mqtrail.wire import SubscriptionParseFailed

from .nodes import Evaluate, ExpressionError
from .numbers import Unanswerable

COMPILED_MAX: Final = 1_024  # expressions remembered, broken ones too


class SqlExpression:
    """One expression. size: the nodes it is made of, about a microsecond a message each."""

    __slots__ = ("_evaluate", "size", "text")

    def __init__(self, text: str, evaluate: Evaluate, size: int = 1) -> None:
        self.text = text
        self.size = size
        self._evaluate = evaluate

    def matches(self, properties: bytes) -> bool:
        """Tell whether the expression holds for a message with this properties text.

        What is unknown (a property that is missing) or cannot be answered (one that is no number) does not hold.
        """
        try:
            return self._evaluate(properties) is True
        except Unanswerable:
            return False


def compile_sql(expression: str) -> SqlExpression:
    """Return the expression, remembered for the next time. SubscriptionParseFailed says where it is wrong."""
    found = _compile(expression)
    if isinstance(found, str):
        raise SubscriptionParseFailed(f"Invalid MessageSelector. {found}")
    return found


@lru_cache(maxsize=COMPILED_MAX)
def _compile(expression: str) -> SqlExpression | str:
    from .grammar import parse  # the parser generator is loaded by the first broker that needs it

    try:
        node = parse(expression)
        return SqlExpression(expression, node.evaluate, node.size)
    except ExpressionError as error:
        return str(error)
