"""Small histories in which one late row changes the verdict of a message that has no new record itself.

Each is named after the only cause (`trail.causes`) that finds the message.
"""

from __future__ import annotations

from collections.abc import Callable

from tests.trail.histories import Row, plain, stored_and_sent, traced
from tests.trail.order_histories import overtaken
from tests.trail.pop_histories import V1, again, on_retries, popped
from tests.trail.story import AS_OF, BROKER, CLIENT, GROUP, TOPIC, History

OTHER = {"group_name": GROUP, "status": "OK", "client_id": "10.9.9.9@7#1", "client_host": "10.9.9.9:4000"}
SILENT = OTHER | {"client_id": "10.9.9.8@8#1", "client_host": "10.9.9.8:4000"}
QUEUE_1 = {"group_name": GROUP, "topic": TOPIC, "broker_name": BROKER, "queue_id": 1, "consumer_offset": 1}
MODEL = {"group_name": "late", "topic": TOPIC, "expression_type": "TAG", "expression": "*"}
PRODUCER_CLIENT = "10.0.0.1@5#1"


def sent(name: str) -> History:
    """Rows of a message that was sent and stored."""
    return History(name).pub().stored().scanned()


def tagged(history: History, time: float, expression: str) -> History:
    """Rows of a sample with the group's filter."""
    row = {"group_name": GROUP, "topic": TOPIC, "expression_type": "TAG", "expression": expression}
    return history.sampled("subscriptions", time, **row, consume_type="CONSUME_PASSIVELY", message_model="CLUSTERING")


def retried(name: str) -> History:
    """Rows of a message whose retry the group's offset has passed, without a record of it."""
    history = stored_and_sent(name).handled(success=False).retry_copy(10, 1)
    return history.offset(2, 60, topic="%RETRY%CG").offset(2, topic="%RETRY%CG")


def dead(name: str) -> History:
    """Rows of a dead letter whose cause follows from the longest chain of the group."""
    history = stored_and_sent(name).handled(success=False).retry_copy(10, 1)
    return history.handled(10.1, success=False, request="R2", times=1).dead_copy(10.2, 2)


ONE_LATE_ROW: tuple[tuple[History, Callable[[History], object]], ...] = (
    (
        sent("holders").group(CLIENT, offset=7).before().sampled("clients", AS_OF - 1, **OTHER),
        lambda h: h.sampled("clients", AS_OF - 0.5, **OTHER),
    ),
    (
        sent("handling_times").group(CLIENT, offset=7).before(),
        lambda h: h.pub(msg=2).handled(0, 400, msg=2, request="R7"),
    ),
    (
        sent("broadcasts").group(CLIENT, offset=None, model="BROADCASTING").handled(trace_client_id=CLIENT),
        lambda h: h.sampled("clients", -5, **OTHER),
    ),
    (
        sent("broadcasts of a client that ended in good order")
        .group(CLIENT, offset=None, model="BROADCASTING")
        .handled(trace_client_id=CLIENT)
        .sampled("clients", -5, **OTHER),
        lambda h: h.ended_well(-4, OTHER["client_id"]),
    ),
    (
        plain("late_groups").group(CLIENT, group="CG2", known=30, offset=None).offset(8, 30, "CG2"),
        lambda h: h.pub(msg=2).handled(60, msg=2, group="CG2", request="R7"),
    ),
    (
        plain("first_offsets").group(CLIENT, group="CG2", known=30, offset=None),
        lambda h: h.offset(8, AS_OF - 0.5, "CG2"),
    ),
    (stored_and_sent("tracing"), lambda h: h.pub(msg=2).handled(msg=2, request="R7")),
    (
        overtaken("orders", ""),
        lambda h: h.sampled("clients", AS_OF - 0.5, **OTHER, ordered="true"),
    ),
    (dead("chains"), lambda h: h.pub(msg=2).handled(times=9, success=False, msg=2, request="R7")),
    (
        plain("excluded_groups").sampled("subscriptions", -60, **MODEL, message_model="BROADCASTING"),
        lambda h: h.sampled("group_offsets", AS_OF - 1, **QUEUE_1 | {"group_name": "late"}),
    ),
    (stored_and_sent("reset_offsets"), lambda h: h.offset(7, AS_OF - 0.5)),
    (retried("reset_retries"), lambda h: h.offset(1, AS_OF - 0.5, topic="%RETRY%CG")),
    (
        History("losses").stored().scanned().group(CLIENT).handled().numbered(-5, 1, PRODUCER_CLIENT),
        lambda h: h.numbered(5, 2, PRODUCER_CLIENT, dropped=4),
    ),
    (
        sent("subscriptions").group(CLIENT, expression="TagA", time=-59),
        lambda h: tagged(h, 0.004, "TagB"),
    ),
    (
        History("hosts").stored().scanned().group(CLIENT).handled(),
        lambda h: h.pub(msg=2).stored(offset=8, msg=2),
    ),
    (
        sent("group_losses").group(CLIENT, offset=7).before(trace_client_id=CLIENT),
        lambda h: h.trace_not_read(1, AS_OF - 0.5),
    ),
    (traced("group_losses of a client").group(CLIENT, offset=7), lambda h: h.loss(50, 60)),
    (
        traced("group_losses by a client that vanished").group(CLIENT, offset=7),
        lambda h: h.sampled("clients", 300, **OTHER),
    ),
    (
        traced("redeliveries by a client that vanished").group(CLIENT).handled(310),
        lambda h: h.sampled("clients", 300, **OTHER),
    ),
    (
        traced("redeliveries of a copy by a client that vanished")
        .group(CLIENT)
        .handled(success=False)
        .retry_copy(290, 1)
        .offset(2, topic="%RETRY%CG")
        .handled(310, times=1, request="R2"),
        lambda h: h.sampled("clients", 300, **OTHER),
    ),
    (
        traced("redeliveries after a client that ended in good order")
        .group(CLIENT)
        .handled(310)
        .sampled("clients", 300, **OTHER),
        lambda h: h.ended_well(300, OTHER["client_id"]),
    ),
    (
        stored_and_sent("offsets that pass the copy of a consumed message")
        .before()
        .after(code=1)
        .retry_copy(60, 1)
        .offset(1, 70, topic="%RETRY%CG"),
        lambda h: h.offset(2, topic="%RETRY%CG"),
    ),
    (traced("unread").group(CLIENT, offset=9), lambda h: h.unread("EXPIRED", 5, 9)),
    (
        traced("unread_retries").group(CLIENT).handled(success=False).retry_copy(10, 1).offset(0, topic="%RETRY%CG"),
        lambda h: h.unread("EXPIRED", 0, 2, topic="%RETRY%CG"),
    ),
    (
        on_retries(again(popped("unread_retries of POP").handled(success=False)), 0),
        lambda h: h.unread("EXPIRED", 0, 2, topic=V1),
    ),
    (
        sent("first_commits").group(offset=None).unread("TOPIC_DELETED", 0, None, group="", live=None),
        lambda h: h.offset(9, AS_OF - 0.5),
    ),
)


def rows_of_changes() -> tuple[dict[str, list[Row]], dict[str, list[Row]]]:
    """Return the rows of all histories, and the late ones."""
    first: dict[str, list[Row]] = {}
    second: dict[str, list[Row]] = {}
    for history, change in ONE_LATE_ROW:
        before = {name: list(rows) for name, rows in history.rows.items()}
        change(history)
        for name, rows in history.rows.items():
            first.setdefault(name, []).extend(before.get(name, []))
            second.setdefault(name, []).extend(row for row in rows if row not in before.get(name, []))
        history.rows = before
    return first, second
