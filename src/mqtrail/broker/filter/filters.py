"""Message filters of subscriptions.

The store first compares queue entries with `tags_codes`, the accepted tag hashes (None: all). If that is not enough,
`accepts` tests the properties text of the record. Held pulls and POP use `matches_code` and `matches` in the same way.

Source: ExpressionMessageFilter, ExpressionForRetryMessageFilter, apache/rocketmq broker/filter/.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final, Protocol

from mqtrail.wire import EXPRESSION_SQL92, EXPRESSION_TAG, SubscriptionData, SubscriptionParseFailed, SystemError_

if TYPE_CHECKING:
    from mqtrail.wire import SqlExpression

Accepts = Callable[[bytes], bool]
NODES_A_READ_MAX: Final = 20_000  # nodes of an expression times messages that one read may test
CODE_SIZE: Final = 64  # bytes of a tag hash in a set
NODE_SIZE: Final = 512  # bytes of a node of a compiled expression


class MessageFilter(Protocol):
    """See the module."""

    @property
    def tags_codes(self) -> frozenset[int] | None:
        """Accepted tag hashes; None: all."""

    @property
    def accepts(self) -> Accepts | None:
        """Test of the properties text of a record; None: the queue entry is enough."""

    @property
    def scan_max(self) -> int | None:
        """Maximum number of entries that one read may test; None: the limit of the store."""

    @property
    def size(self) -> int:
        """Approximate number of bytes that it takes."""
        ...

    def matches_code(self, tags_code: int) -> bool:
        """Return whether a queue entry is accepted."""

    def matches(self, properties: bytes) -> bool:
        """Return whether the record of an accepted entry is accepted."""


class TagFilter:
    """Tags by their hash. A message with another tag of equal hash passes; the client drops it."""

    __slots__ = ("tags_codes",)

    def __init__(self, tags_codes: frozenset[int]) -> None:
        self.tags_codes: frozenset[int] | None = tags_codes

    @property
    def accepts(self) -> Accepts | None:
        return None

    @property
    def scan_max(self) -> int | None:
        return None

    @property
    def size(self) -> int:
        return 0 if self.tags_codes is None else CODE_SIZE * len(self.tags_codes)

    def matches_code(self, tags_code: int) -> bool:
        return self.tags_codes is None or (tags_code + 0x80000000 & 0xFFFFFFFF) - 0x80000000 in self.tags_codes

    def matches(self, properties: bytes) -> bool:
        return True


class SqlFilter:
    """An expression over properties; queue entries do not decide."""

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

    @property
    def size(self) -> int:
        return NODE_SIZE * self.expression.size

    def matches_code(self, tags_code: int) -> bool:
        return True

    def matches(self, properties: bytes) -> bool:
        return self.accepts is None or self.accepts(properties)


def is_tag_type(expression_type: str | None) -> bool:
    """Return whether an expression consists of tags, which is the default type."""
    return not expression_type or expression_type == EXPRESSION_TAG


def require_filter(subscription: SubscriptionData, is_served: bool) -> None:
    """Refuse an expression of another type than tags if the broker does not serve it. SystemError_, as 5.3.3."""
    if not is_tag_type(subscription.expression_type) and not is_served:
        raise SystemError_(
            f"The broker does not support consumer to filter message by {subscription.expression_type}: "
            "set enablePropertyFilter=true, or subscribe by tags"
        )


def filter_codes(subscription: SubscriptionData) -> frozenset[int] | None:
    """Return the tag hashes that a subscription by tags accepts; None: all."""
    if subscription.is_all or subscription.class_filter_mode:
        return None
    return frozenset(subscription.code_set)


def compile_filter(subscription: SubscriptionData) -> MessageFilter | None:
    """Return the filter of a subscription; None: it accepts all messages. SubscriptionParseFailed."""
    if is_tag_type(subscription.expression_type):
        codes = filter_codes(subscription)
        return None if codes is None else TagFilter(codes)
    if subscription.class_filter_mode:
        return None
    return SqlFilter(compile_expression(subscription.expression_type, subscription.sub_string))


def compile_expression(expression_type: str, expression: str) -> SqlExpression:
    """Return a compiled SQL92 expression. SubscriptionParseFailed: another type, or a syntax error."""
    if expression_type != EXPRESSION_SQL92:
        raise SubscriptionParseFailed(
            f"found expression type {expression_type!r:.40}, expected {EXPRESSION_TAG} or {EXPRESSION_SQL92}"
        )
    if not expression:
        raise SubscriptionParseFailed(f"Expression can't be null! {expression_type}: found none, expected one")
    from mqtrail.wire import compile_sql  # few brokers filter by SQL92

    return compile_sql(expression)
