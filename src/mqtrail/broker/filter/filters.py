"""What a subscription lets through.

The store looks at queue entries first: `tags_codes` are the tag hashes that may pass, None for any. Where that does not
decide, `accepts` looks at the record's properties text. Held pulls and POP ask `matches_code` and `matches` the same.

Source: ExpressionMessageFilter, ExpressionForRetryMessageFilter, apache/rocketmq broker/filter/.
"""

from collections.abc import Callable
from typing import Final, Protocol

from mqtrail.wire import EXPRESSION_SQL92, EXPRESSION_TAG, SubscriptionData, SubscriptionParseFailed, SystemError_

from .sql import SqlExpression, compile_sql

Accepts = Callable[[bytes], bool]
NODES_A_READ_MAX: Final = 20_000  # of an expression, times the messages that one read looks at


class MessageFilter(Protocol):
    """See the module."""

    @property
    def tags_codes(self) -> frozenset[int] | None:
        """The tag hashes of entries that may pass, None for any."""

    @property
    def accepts(self) -> Accepts | None:
        """The test of a record's properties text, None where the entry decides."""

    @property
    def scan_max(self) -> int | None:
        """How many entries one read may look at, None for as many as the store does."""

    def matches_code(self, tags_code: int) -> bool:
        """Tell whether an entry may pass."""

    def matches(self, properties: bytes) -> bool:
        """Tell whether a record whose entry may pass does."""


class TagFilter:
    """Tags by their hash: may let a wrong tag through, which the client stops, never stops a right one."""

    __slots__ = ("tags_codes",)

    def __init__(self, tags_codes: frozenset[int]) -> None:
        self.tags_codes: frozenset[int] | None = tags_codes

    @property
    def accepts(self) -> Accepts | None:
        return None

    @property
    def scan_max(self) -> int | None:
        return None

    def matches_code(self, tags_code: int) -> bool:
        return self.tags_codes is None or (tags_code + 0x80000000 & 0xFFFFFFFF) - 0x80000000 in self.tags_codes

    def matches(self, properties: bytes) -> bool:
        return True


class SqlFilter:
    """An expression over properties: entries say nothing."""

    __slots__ = ("accepts", "expression")

    def __init__(self, expression: SqlExpression, accepts: Accepts | None = None) -> None:
        self.expression = expression
        self.accepts: Accepts | None = accepts or expression.matches

    @property
    def tags_codes(self) -> frozenset[int] | None:
        return None

    @property
    def scan_max(self) -> int | None:
        return max(1, NODES_A_READ_MAX // self.expression.size)

    def matches_code(self, tags_code: int) -> bool:
        return True

    def matches(self, properties: bytes) -> bool:
        return self.accepts is None or self.accepts(properties)


def is_tag_type(expression_type: str | None) -> bool:
    """Tell whether an expression is made of tags: so it is where nothing else is said."""
    return not expression_type or expression_type == EXPRESSION_TAG


def require_filter(subscription: SubscriptionData, is_served: bool) -> None:
    """Refuse an expression that is not made of tags where it is not served. SystemError_, as 5.3.3."""
    if not is_tag_type(subscription.expression_type) and not is_served:
        raise SystemError_(
            f"The broker does not support consumer to filter message by {subscription.expression_type}: "
            "set enablePropertyFilter=true, or subscribe by tags"
        )


def filter_codes(subscription: SubscriptionData) -> frozenset[int] | None:
    """Return the tag hashes that a subscription by tags lets through, None for all."""
    if subscription.is_all or subscription.class_filter_mode:
        return None
    return frozenset(subscription.code_set)


def compile_filter(subscription: SubscriptionData) -> MessageFilter | None:
    """Return the filter of a subscription, None for all messages. SubscriptionParseFailed: it cannot be read."""
    if is_tag_type(subscription.expression_type):
        codes = filter_codes(subscription)
        return None if codes is None else TagFilter(codes)
    if subscription.class_filter_mode:
        return None
    return SqlFilter(compile_expression(subscription.expression_type, subscription.sub_string))


def compile_expression(expression_type: str, expression: str) -> SqlExpression:
    """Return an expression that is not made of tags. SubscriptionParseFailed: another language than SQL92, or wrong."""
    if expression_type != EXPRESSION_SQL92:
        raise SubscriptionParseFailed(
            f"found expression type {expression_type!r:.40}, expected {EXPRESSION_TAG} or {EXPRESSION_SQL92}"
        )
    if not expression:
        raise SubscriptionParseFailed(f"Expression can't be null! {expression_type}: found none, expected one")
    return compile_sql(expression)
