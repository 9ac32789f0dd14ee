"""The shop's plan: its topics and groups, the faults of its orders, and the settings that keep the demo short.

The order's number decides all faults, so two runs affect the same orders. `truth.py` records what really happened.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

ORDERS: Final = "orders"
PAYMENTS: Final = "payments"
REMINDERS: Final = "reminders"
TOPICS: Final = (ORDERS, PAYMENTS, REMINDERS)
QUEUE_NUMS: Final = 4

# Changed from the defaults, and printed: retries take level 3 + attempts made, so levels 3 to 6 are short here.
DELAY_LEVELS: Final = "1s 5s 1s 1s 2s 2s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 1h 2h"
HUNG_MS: Final = 15_000
HUNG_MS_DEFAULT: Final = 45_000
ATTEMPTS_MAX: Final = 2  # redeliveries before the dead-letter queue
LEVEL_HOUR: Final = 17
HANGING: Final = (2504, 2529, 2554, 2579)  # as many reminders as `sms` has handlers: later ones wait
REMINDER_LEVEL: Final = 2  # 5 s
REMINDER_LEVEL_LATER: Final = 18  # 2 h: still waiting when the demo ends


@dataclass(frozen=True, slots=True)
class GroupPlan:
    """One consumer group: its subscriptions, its number of concurrent handlers, whether it has a member."""

    name: str
    subscriptions: Mapping[str, str]
    concurrency: int = 20
    live: bool = True

    def tags(self, topic: str) -> frozenset[str]:
        """The tags that the group subscribes to in a topic, empty for all."""
        expression = self.subscriptions[topic]
        return frozenset() if expression == "*" else frozenset(tag.strip() for tag in expression.split("||"))


STOCK: Final = GroupPlan("stock", {ORDERS: "CREATED"})
POINTS: Final = GroupPlan("points", {ORDERS: "PAID"})
LEDGER: Final = GroupPlan("ledger", {PAYMENTS: "*"})
SMS: Final = GroupPlan("sms", {REMINDERS: "*"}, concurrency=4)
AUDIT: Final = GroupPlan("audit", {PAYMENTS: "*"}, live=False)
GROUPS: Final = (STOCK, POINTS, LEDGER, SMS, AUDIT)


class PlannedFault(StrEnum):
    """The planned fault of a message's handling."""

    NONE = ""
    SLOW = "slow"  # takes 1.3 s, then succeeds
    FLAKY = "flaky"  # raises once, then succeeds
    POISON = "poison"  # raises every time
    REFUSED = "refused"  # sends it to the dead-letter queue at once
    LATER = "later"  # requests redelivery in an hour
    HANG = "hang"  # never returns


@dataclass(frozen=True, slots=True)
class ShopOrder:
    """One order of the shop. The first key of each of its messages identifies it in the truth."""

    number: int

    @property
    def name(self) -> str:
        """The order's key, on all its messages."""
        return f"order-{self.number:06d}"

    @property
    def created(self) -> str:
        """Key of the CREATED message."""
        return f"{self.name}.created"

    @property
    def paid(self) -> str:
        """Key of the PAID message."""
        return f"{self.name}.paid"

    @property
    def charge(self) -> str:
        """Key of the payment."""
        return f"{self.name}.charge"

    @property
    def reminder(self) -> str:
        """Key of the reminder."""
        return f"{self.name}.reminder"

    @property
    def is_reminded(self) -> bool:
        """Whether a delayed reminder is sent for it."""
        return self.number % 25 == 4

    @property
    def is_special(self) -> bool:
        """Whether a fault is planned for it; such orders are sent first."""
        return any(planned_fault(group.name, self) not in (PlannedFault.NONE, PlannedFault.HANG) for group in GROUPS)


def planned_fault(group: str, order: ShopOrder) -> PlannedFault:
    """Return the planned fault of the order's message in a group."""
    remainder = order.number % 500
    match group, remainder:
        case "stock", 11 | 12:
            return PlannedFault.SLOW
        case "stock", 21 | 22 | 23:
            return PlannedFault.FLAKY
        case "points", 31:
            return PlannedFault.POISON
        case "points", 32:
            return PlannedFault.REFUSED
        case "points", 33:
            return PlannedFault.LATER
        case "points", 34:
            return PlannedFault.SLOW
    if group == "sms" and order.number in HANGING:
        return PlannedFault.HANG
    return PlannedFault.NONE


def orders(count: int) -> Iterator[ShopOrder]:
    """Yield the shop's orders, those with planned faults first."""
    everyone = [ShopOrder(number) for number in range(1, count + 1)]
    yield from (order for order in everyone if order.is_special)
    yield from (order for order in everyone if not order.is_special)


def order_of(key: str) -> ShopOrder:
    """Return the order that a message's first key belongs to."""
    return ShopOrder(int(key.split(".")[0].removeprefix("order-")))
