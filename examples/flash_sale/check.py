"""The check: counts what must not happen, in the stores of the business and in the lake made from the trace.

The two know nothing of each other. A store shows effects; the lake shows messages, one for each effect: an order has a
unit, a committed `paid` is a payment, a `credited` comes from the transaction of the points.
"""

import time
from collections import Counter
from collections.abc import Collection
from dataclasses import astuple, dataclass, fields
from pathlib import Path

import pyarrow as pa

from mqtrail.answers import Answers
from mqtrail.client import Admin

from .sale import Sale
from .stock import Stock, connect

SHOWN_MAX = 5  # lost orders


@dataclass(frozen=True)
class Wrongs:
    """What must be 0."""

    oversell: int
    lost_orders: int
    double_payments: int
    double_points: int


@dataclass(frozen=True)
class Verdict:
    """What the check found. unsure: why it cannot say that all is well. named: lost orders."""

    stores: Wrongs
    lake: Wrongs
    unsure: list[str]
    named: list[str]
    orders: int
    sms: int
    sms_repeated: int

    @property
    def agree(self) -> bool:
        """Whether stores and lake have the same counts."""
        return self.stores == self.lake

    @property
    def exit_code(self) -> int:
        """1: found something. 3: found nothing, but it cannot tell. 0: nothing, and everything was read."""
        if any(astuple(self.stores) + astuple(self.lake)):
            return 1
        return 3 if self.unsure else 0


def count(sale: Sale, orders: Collection[str], paid: Counter[str], credited: Counter[str], unknown: int = 0) -> Wrongs:
    """Count. orders: those with a unit. paid, credited: how often each was. unknown: further lost orders."""
    ordered = set(orders) | set(paid)
    return Wrongs(
        oversell=max(0, len(ordered) - sale.stock),
        lost_orders=len(ordered - (set(paid) & set(credited))) + unknown,
        double_payments=paid.total() - len(paid),
        double_points=credited.total() - len(credited),
    )


async def in_stores(sale: Sale) -> tuple[Wrongs, int]:
    """Count in Redis and in the databases of the workers. Also return how many orders there are."""
    async with connect(sale, retries=0) as client:
        orders = await Stock(sale, client).orders()
    with sale.payments() as connection:
        paid = Counter[str](row[0] for row in connection.execute("SELECT order_id FROM payments WHERE amount > 0"))
    with sale.points() as connection:
        credited = Counter[str](row[0] for row in connection.execute("SELECT order_id FROM points"))
    return count(sale, orders, paid, credited), len(set(orders) | set(paid))


def in_lake(sale: Sale, lake: Path) -> Wrongs:
    """Count in the lake. An order or a payment that was sent again under its id is one message."""
    found = {topic: Counter[str]() for topic in sale.topics}
    topics = ", ".join(f"'{topic}'" for topic in sale.topics)
    text = (
        "SELECT topic, keys[1] AS order_id, count(DISTINCT msg_id) AS messages FROM messages"
        f" WHERE topic IN ({topics}) AND visible_at IS NOT NULL GROUP BY ALL"
    )
    with Answers(lake).query(text, now_ms()) as answer:
        for row in pa.Table.from_batches(answer.batches, answer.schema).to_pylist():
            found[row["topic"]][row["order_id"]] = row["messages"]
    orders, paid, credited = (found[topic] for topic in sale.topics)
    # The lake does not know Redis. But a sale with enough buyers ends with one order for each unit.
    missing = min(sale.stock, sale.buyers) - len(set(orders) | set(paid))
    return count(sale, orders, paid, credited, unknown=max(0, missing))


def names(sale: Sale, lake: Path) -> list[str]:
    """Return the orders without `paid` or `credited`, each with what the lake knows of its messages."""
    topics = ", ".join(f"'{topic}'" for topic in sale.topics)
    codes = "topic || ' ' || coalesce(array_to_string(message_codes, ','), '')"
    text = (
        f"SELECT keys[1] AS order_id, string_agg(DISTINCT {codes}, '; ') FROM messages WHERE topic IN ({topics})"
        " GROUP BY order_id HAVING count(DISTINCT topic) FILTER (visible_at IS NOT NULL) < 3 ORDER BY order_id"
    )
    with Answers(lake).query(text, now_ms()) as answer:
        return [": ".join(row.values()) for row in pa.Table.from_batches(answer.batches, answer.schema).to_pylist()]


async def unhandled(sale: Sale) -> list[str]:
    """Return what is still on its way: orders and credits to send, messages that a group has not handled."""
    found = []
    async with connect(sale, retries=0) as client:
        if orders := await Stock(sale, client).unsent(1_000):
            found.append(f"the shop has not sent {len(orders)} orders")
    with sale.points() as connection:
        [(credits,)] = connection.execute("SELECT count(*) FROM mqtrail_outbox WHERE sent_ms = 0").fetchall()
        if credits:
            found.append(f"the points worker has not sent {credits} messages")
    async with Admin(sale.namesrv) as admin:
        for group, topic in sale.groups.items():
            stats = await admin.consume_stats(group)
            queues = [queue for broker in stats.found.values() for queue in broker.offset_table.values()]
            left = sum(queue.broker_offset - max(0, queue.consumer_offset) for queue in queues)
            failures = stats.failures
            if not queues:  # the group has committed nothing: all of the topic is left
                ranges = await admin.topic_stats(topic)
                left = sum(queue.max_offset for one in ranges.found.values() for queue in one.offset_table.values())
                failures = ranges.failures
            if left or failures:
                found.append(f"{group} has not handled {left} messages, and {len(failures)} brokers do not answer")
    return found


def unread(sale: Sale, lake: Path) -> list[str]:
    """Return what the lake may not know."""
    return [f"{topic}: {limit}" for topic in sale.topics for limit in Answers(lake).prove(topic, now_ms()).limits]


async def check(sale: Sale, lake: Path) -> Verdict:
    """Count in both, and compare."""
    stores, orders = await in_stores(sale)
    unsure = await unhandled(sale) + unread(sale, lake)
    sent = sale.sms
    return Verdict(
        stores, in_lake(sale, lake), unsure, names(sale, lake), orders, len(sent), len(sent) - len(set(sent))
    )


def report(sale: Sale, verdict: Verdict) -> str:
    """Return the verdict as text."""
    lines = [f"{sale.name}: {sale.stock} units, {sale.buyers} buyers, {verdict.orders} orders", ""]
    lines.append(f"{'':18}{'stores':>8}{'lake':>8}")
    for field in fields(Wrongs):
        stores, lake = getattr(verdict.stores, field.name), getattr(verdict.lake, field.name)
        lines.append(f"{field.name.replace('_', ' '):18}{stores:8}{lake:8}")
    lines += ["", f"Stores and lake {'agree' if verdict.agree else 'DO NOT AGREE'}."]
    lines.append(
        f"{verdict.sms} SMS, {verdict.sms_repeated} of them repeated (not counted: an SMS has no transaction)."
    )
    lines += [f"Lost: {one}" for one in verdict.named[:SHOWN_MAX]]
    lines += [f"Cannot tell: {one}" for one in verdict.unsure]
    lines.append(
        {0: "Nothing is wrong.", 1: "FOUND.", 3: "Found nothing, but not everything was read."}[verdict.exit_code]
    )
    return "\n".join(lines)


def now_ms() -> int:
    """Return the wall clock, epoch ms."""
    return time.time_ns() // 1_000_000
