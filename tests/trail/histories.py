"""Small labelled histories: the evidence of one message or a few, and their expected codes.

One run judges all of them as of AS_OF_MS. `story` has the methods that add rows.
"""

from __future__ import annotations

from collections.abc import Iterable

from tests.trail.filter_histories import FILTER_HISTORIES
from tests.trail.forwarded_histories import FORWARDED_HISTORIES
from tests.trail.namespace_histories import NAMESPACE_HISTORIES
from tests.trail.order_histories import ORDER_HISTORIES
from tests.trail.pop_histories import POP_HISTORIES
from tests.trail.story import (
    AS_OF,
    AS_OF_MS,
    BASE_MS,
    BROKER,
    CLIENT,
    GROUP,
    PRODUCER,
    TOPIC,
    Expected,
    History,
    Row,
    at,
    offset_id,
    unique_id,
)
from tests.trail.vanished_histories import VANISHED_HISTORIES
from tests.trail.whole_histories import WHOLE_HISTORIES

__all__ = ["AS_OF_MS", "BASE_MS", "HISTORIES", "Expected", "History", "Row", "evidence", "unique_id", "units"]


def stored_and_sent(name: str) -> History:
    """A message that was sent and stored, with a live group that read past it."""
    return History(name).pub().stored().scanned().group(CLIENT)


def plain(name: str) -> History:
    """A message that was sent, stored and consumed."""
    return stored_and_sent(name).handled()


def transaction(name: str) -> History:
    """A half message, of a topic that is read and has a live group."""
    return History(name).pub(msg_type=1).half().scanned_ends().group(CLIENT)


def traced(name: str) -> History:
    """A message that was sent and stored, and another one that the group consumed."""
    return History(name).pub().stored().scanned().pub(msg=2).stored(offset=3, msg=2).handled(msg=2, request="R8")


def hung(name: str, begun: float = 100) -> History:
    """A message whose handler began and did not end, with a live client."""
    history = History(name).pub().stored().scanned().group(CLIENT, offset=7)
    return history.before(begun, client_id=CLIENT, trace_client_id=CLIENT)


def batch(name: str, keys: tuple[str, str, str] = ("k1", "k2", "k3")) -> History:
    """Three messages of one batch: own ids 1, 2, 3; consumers see id 99."""
    history = History(name).scanned().group(CLIENT, offset=10)
    for number, key in enumerate(keys, 1):
        history.pub(msg=number, item_no=number - 1, item_count=3)
        history.stored(kind="BATCH", offset=6 + number, msg=number, last_unique_key=unique_id(99), keys=key)
    return history


# fmt: off
HISTORIES = (
    # --- sending
    plain("send ok").expect(CG="CONSUMED"),
    stored_and_sent("send ok, trace record twice").pub(queue_id=3).handled().handled().expect(CG="CONSUMED"),
    History("send slow").pub(cost=1.0).stored(1.0).scanned().group(CLIENT).handled(1.1)
    .expect("SEND_OK,SEND_SLOW", CG="CONSUMED"),
    History("send not quite slow").pub(cost=0.999).stored(0.9).scanned().group(CLIENT).handled(1.1)
    .expect(CG="CONSUMED"),
    History("send degraded").pub(success=False).stored().scanned().group(CLIENT).handled()
    .expect("SEND_DEGRADED", CG="CONSUMED"),
    History("send retried").tried(0, 1, "ERROR", response_code=2).tried(0.1, 2, "OK", True).pub(0.1).stored(0.11)
    .scanned()
    .group(CLIENT).handled(0.2).expect("SEND_OK,SEND_RETRIED", CG="CONSUMED"),
    History("send retried and degraded").tried(0, 1, "ERROR", response_code=2).tried(0.1, 2, "OK", True)
    .pub(0.1, success=False).stored(0.11).scanned().group(CLIENT).handled(0.2)
    .expect("SEND_DEGRADED,SEND_RETRIED", CG="CONSUMED"),
    History("send retried and slow in all").tried(0, 1, "TIMEOUT", cost=0.9).tried(0.9, 2, "OK", True, 0.2)
    .pub(0.9, 0.2)
    .stored(1.0).scanned().group(CLIENT).handled(1.2).expect("SEND_OK,SEND_SLOW,SEND_RETRIED", CG="CONSUMED"),
    History("send failed").tried(0, 1, "ERROR", response_code=2).tried(0.1, 2, "CONNECT")
    .tried(0.2, 3, "NOT_SENT", True)
    .scanned().group(CLIENT).expect("SEND_RETRIED,SEND_FAILED", reasons=("NO_COPY",)),
    History("send failed at once, topic not read").tried(0, 1, "ERROR", True, response_code=17)
    .expect("SEND_FAILED", knowledge="INCOMPLETE", reasons=("TOPIC_NOT_SCANNED",)),
    History("send uncertain, no copy").tried(0, 1, "TIMEOUT", cost=3).tried(3, 2, "ERROR", True, response_code=2)
    .scanned()
    .group(CLIENT).expect("SEND_RETRIED,SEND_UNCERTAIN", reasons=("NO_COPY",)),
    History("send uncertain, no copy, its range was lost").tried(0, 1, "TIMEOUT", True, cost=3).scanned()
    .gap(-5, 5, TOPIC).group(CLIENT)
    .expect("SEND_UNCERTAIN", knowledge="INCOMPLETE", reasons=("COPY_NOT_FOUND", "RANGE_NOT_READ_orders", "!NO_COPY")),
    History("send failed, another range was lost").tried(0, 1, "ERROR", True, response_code=2).scanned()
    .gap(60, 70, TOPIC).gap(-1, 1, "payments").group(CLIENT).expect("SEND_FAILED", reasons=("NO_COPY",)),
    History("send uncertain, its topic was read before").tried(AS_OF - 20, 1, "TIMEOUT", True, cost=15).scanned()
    .group(CLIENT).expect("SEND_UNCERTAIN", knowledge="INCOMPLETE", reasons=("COPY_PENDING", "!NO_COPY")),
    History("send uncertain, its queue was first read when it may have been removed")
    .tried(0, 1, "TIMEOUT", True, cost=3).scanned().left_out(5, TOPIC).group(CLIENT)
    .expect("SEND_UNCERTAIN", knowledge="INCOMPLETE", reasons=("COPY_NOT_FOUND", "RANGE_NOT_READ_orders", "!NO_COPY")),
    History("send uncertain, later than all that was removed before the first read").tried(0, 1, "TIMEOUT", True, 3)
    .scanned().left_out(-11, TOPIC).left_out(5, "payments").left_out(-5).group(CLIENT)
    .expect("SEND_UNCERTAIN", reasons=("NO_COPY",)),
    History("send uncertain, removed before the first read, by a clock that is ahead")
    .tried(300, 1, "TIMEOUT", True, 3, stored=4).scanned().left_out(5, TOPIC).group(CLIENT)
    .expect("SEND_UNCERTAIN", knowledge="INCOMPLETE", reasons=("COPY_NOT_FOUND", "RANGE_NOT_READ_orders", "!NO_COPY")),
    History("send uncertain, its topic was read before, by a clock that is behind")
    .tried(0, 1, "TIMEOUT", True, 3, stored=AS_OF - 5).scanned().group(CLIENT)
    .expect("SEND_UNCERTAIN", knowledge="INCOMPLETE", reasons=("COPY_PENDING", "!NO_COPY")),
    History("acknowledged, its range was lost").pub().scanned().gap(-5, 5, TOPIC).group(CLIENT).handled()
    .expect(knowledge="INCOMPLETE", reasons=("COPY_NOT_FOUND", "RANGE_NOT_READ_orders"), CG="CONSUMED"),
    hung("hung, messages of its topic were lost").scanned().gap(90, 590, TOPIC).expect(CG="HUNG"),
    hung("hung, a range of a trace topic that counts as read was lost").scanned("RMQ_SYS_TRACE_TOPIC").gap(90, 590)
    .expect(knowledge="INCOMPLETE", CG="UNKNOWN", group_reasons=("RANGE_NOT_READ_RMQ_SYS_TRACE_TOPIC",)),
    hung("hung, its end may have been removed before the first read").left_out(150)
    .expect(knowledge="INCOMPLETE", CG="UNKNOWN", group_reasons=("END_MAY_BE_LOST",)),
    hung("hung, later than all that was removed before the first read").left_out(99).expect(CG="HUNG"),
    hung("hung, copies that wait for a retry were lost").scanned("SCHEDULE_TOPIC_XXXX")
    .gap(90, 590, "SCHEDULE_TOPIC_XXXX")
    .expect(knowledge="INCOMPLETE", CG="UNKNOWN", group_reasons=("RANGE_NOT_READ_SCHEDULE_TOPIC_XXXX",)),
    History("send uncertain, stored and consumed").tried(0, 1, "TIMEOUT", True, 3).stored().scanned().group(CLIENT)
    .handled()
    .expect("SEND_UNCERTAIN", reasons=("FOUND",), CG="CONSUMED"),
    History("one-way and stored").tried(0, 1, "ONEWAY", True).stored().scanned().group(CLIENT).handled()
    .expect("SEND_UNCERTAIN", reasons=("FOUND",), CG="CONSUMED"),
    History("send without its end").tried(0, 1, "ERROR").scanned().group(CLIENT)
    .expect("", knowledge="INCOMPLETE", reasons=("SEND_END_NOT_TRACED",)),
    History("send that timed out, without its end").tried(0, 1, "TIMEOUT", cost=3).stored().scanned().group(CLIENT)
    .handled()
    .expect("", knowledge="INCOMPLETE", reasons=("SEND_END_NOT_TRACED",), CG="CONSUMED"),
    History("send try missing").tried(0.1, 3, "OK", True).tried(0, 1, "ERROR").pub(0.1).stored().scanned().group(CLIENT)
    .handled(0.2).expect("SEND_OK,SEND_RETRIED", knowledge="INCOMPLETE", reasons=("SEND_TRIES_NOT_TRACED",),
                         CG="CONSUMED"),
    # --- a stored copy without a send record proves no send, and its causes differ
    History("no send record, trace off at the producer").stored().scanned().group(CLIENT).handled()
    .expect("", knowledge="INCOMPLETE", reasons=("PRODUCER_NOT_TRACED",), CG="CONSUMED"),
    History("no send record, its neighbour has one").stored().pub(msg=2).stored(offset=8, msg=2).scanned()
    .group(CLIENT, offset=9).handled().handled(msg=2, request="R2").expect(msg=2, CG="CONSUMED")
    .expect("", knowledge="INCOMPLETE", reasons=("NO_SEND_RECORD",), CG="CONSUMED"),
    History("no send record, trace off at the broker").stored(trace_on="false").scanned().group(CLIENT)
    .expect("", knowledge="INCOMPLETE", reasons=("TRACE_OFF_AT_BROKER",), CG="UNKNOWN",
            group_reasons=("TRACE_OFF_AT_BROKER",)),
    History("no send record, records dropped").stored().scanned().group(CLIENT).handled()
    .numbered(-5, 1, "10.0.0.1@5#1").numbered(5, 2, "10.0.0.1@5#1", dropped=4)
    .expect("", knowledge="INCOMPLETE", reasons=("PRODUCER_NOT_TRACED", "TRACE_DROPPED"), CG="CONSUMED"),
    History("send record still on its way").stored(AS_OF - 2).scanned().group(CLIENT, offset=7)
    .expect("", knowledge="INCOMPLETE", reasons=("TRACE_PENDING",), CG="UNKNOWN", group_reasons=("TRACE_PENDING",)),
    History("acknowledged, no copy").pub().scanned().group(CLIENT)
    .expect(knowledge="INCOMPLETE", reasons=("COPY_NOT_FOUND",), CG="UNKNOWN", group_reasons=("POSITION_UNKNOWN",)),
    # --- delay
    History("scheduled").pub(msg_type=3).delay_wait(7200, 18).scanned().group(CLIENT, offset=7)
    .expect(message="SCHEDULED", CG="WAITING"),
    History("delivered in time").pub(msg_type=3)
    .delay_wait(5, 2)
    .stored(5.1, "DELAYED", real_topic=TOPIC, delay_level=2).scanned().group(CLIENT).handled(5.2).expect(CG="CONSUMED"),
    History("delivered late").pub(msg_type=3)
    .delay_wait(5, 2)
    .stored(8.0, "DELAYED", real_topic=TOPIC, delay_level=2).scanned().group(CLIENT).handled(8.2)
    .expect(message="DELIVERED_LATE", CG="CONSUMED"),
    History("scheduled, due since, its topic is not read").pub(msg_type=3).delay_wait(5, 2).group(CLIENT, offset=7)
    .expect(knowledge="INCOMPLETE", CG="UNKNOWN", group_reasons=("POSITION_UNKNOWN",)),
    History("delayed and consumed, its topic is not read").pub(msg_type=3).delay_wait(5, 2).group(CLIENT).handled(8)
    .expect(knowledge="INCOMPLETE", reasons=("TOPIC_NOT_SCANNED",), CG="CONSUMED"),
    History("scheduled, its topic is not read").pub(msg_type=3).delay_wait(7200, 18).group(CLIENT, offset=7)
    .expect(message="SCHEDULED", CG="WAITING"),
    # --- not handed over
    History("waiting, the group traces others").pub().stored().scanned().group(CLIENT, offset=7).pub(msg=2)
    .stored(offset=6, msg=2).handled(msg=2).expect(CG="WAITING").expect(msg=2, CG="CONSUMED"),
    History("no consumer, the group traced others").pub().stored().scanned().group(offset=7).pub(msg=2)
    .stored(offset=6, msg=2).handled(msg=2).expect(CG="NO_CONSUMER").expect(msg=2, CG="CONSUMED"),
    History("waiting").pub().stored().scanned().group(CLIENT, offset=7)
    .expect(knowledge="INCOMPLETE", CG="WAITING", group_reasons=("GROUP_NOT_TRACED",)),
    History("waiting, never committed on the queue").pub().stored().scanned().group(CLIENT, offset=None)
    .offset(0, topic="other").expect(knowledge="INCOMPLETE", CG="WAITING", group_reasons=("GROUP_NOT_TRACED",)),
    History("no consumer").pub().stored().scanned().group(offset=7)
    .expect(knowledge="INCOMPLETE", CG="NO_CONSUMER", group_reasons=("GROUP_NOT_TRACED",)),
    History("offsets never sampled").pub().stored().scanned().group(CLIENT, offset=None)
    .expect(knowledge="INCOMPLETE", reasons=("GROUPS_INCOMPLETE",), CG="UNKNOWN",
            group_reasons=("OFFSETS_NOT_SAMPLED",)),
    History("clients never sampled").pub().stored().scanned().offset(7, -60).offset(7)
    .expect(knowledge="INCOMPLETE", CG="UNKNOWN", group_reasons=("CLIENTS_NOT_SAMPLED",)),
    History("broker of the group could not be queried").pub().stored().scanned().offset(7, -60).offset(7)
    .sampled("clients", AS_OF - 1, group_name=GROUP, status="ERROR")
    .expect(knowledge="INCOMPLETE", CG="UNKNOWN", group_reasons=("CLIENTS_NOT_SAMPLED",)),
    History("samples are old").pub().stored().scanned().group(CLIENT, offset=7, time=120)
    .expect(knowledge="INCOMPLETE", CG="UNKNOWN", group_reasons=("STATE_STALE",)),
    History("offsets of its broker are old, those of another one are not").pub().stored().scanned()
    .group(CLIENT, offset=None).offset(7, -60).offset(7, 120)
    .sampled("group_offsets", AS_OF - 1, group_name=GROUP, topic=TOPIC, broker_name="broker-b", queue_id=0,
             consumer_offset=3)
    .expect(knowledge="INCOMPLETE", CG="UNKNOWN", group_reasons=("STATE_STALE",)),
    History("handed over, trace on its way").pub().stored().scanned().group(CLIENT, offset=7).offset(8)
    .expect(knowledge="INCOMPLETE", CG="UNKNOWN", group_reasons=("TRACE_PENDING",)),
    History("the offset was moved back").pub().stored().scanned().group(CLIENT, offset=7).offset(8, 100)
    .expect(knowledge="INCOMPLETE", CG="WAITING", group_reasons=("GROUP_NOT_TRACED",)),
    History("offset recorded by our client alone").pub().stored().scanned().group(CLIENT, offset=None)
    .trace("OffsetCommit", 100, group_name=GROUP, topic=TOPIC, store_broker_name=BROKER, store_queue_id=0,
           consumer_offset=8)
    .expect(knowledge="INCOMPLETE", CG="UNKNOWN", group_reasons=("GROUP_NOT_TRACED",)),
    # --- passed without a record
    stored_and_sent("passed, the group never traced")
    .expect(knowledge="INCOMPLETE", CG="UNKNOWN", group_reasons=("GROUP_NOT_TRACED",)),
    stored_and_sent("passed, the group traces others").pub(msg=2).stored(offset=6, msg=2).handled(msg=2)
    .expect(msg=2, CG="CONSUMED").expect(knowledge="INCOMPLETE", CG="UNKNOWN", group_reasons=("PASSED_UNTRACED",)),
    stored_and_sent("passed, records dropped").numbered(0, 1).numbered(5, 2, dropped=3)
    .expect(knowledge="INCOMPLETE", CG="UNKNOWN", group_reasons=("GROUP_NOT_TRACED", "TRACE_DROPPED")),
    stored_and_sent("passed, trace messages lost").numbered(-1, 1).numbered(5, 4)
    .expect(knowledge="INCOMPLETE", CG="UNKNOWN", group_reasons=("TRACE_MESSAGES_LOST",)),
    stored_and_sent("passed, a loss reported").loss(0, 1)
    .expect(knowledge="INCOMPLETE", CG="UNKNOWN", group_reasons=("TRACE_DROPPED_SPOOL_FULL",)),
    stored_and_sent("passed, a range of the trace gone").gap(-1, 3)
    .expect(knowledge="INCOMPLETE", CG="UNKNOWN", group_reasons=("RANGE_NOT_READ_RMQ_SYS_TRACE_TOPIC",)),
    stored_and_sent("passed, a loss of another time")
    .trace("TraceLoss", 5, client_id=CLIENT, start_id="A", from_ms=at(-90),
                                                           to_ms=at(-80), lost_count=9, reason="SPOOL_FULL")
    .expect(knowledge="INCOMPLETE", CG="UNKNOWN", group_reasons=("GROUP_NOT_TRACED", "!TRACE_DROPPED")),
    # --- removed before it was read
    traced("expired, no consumer").group(offset=7).unread("EXPIRED", 7, 9).expect(msg=2, CG="CONSUMED")
    .expect(CG="EXPIRED", group_reasons=("REMOVED_UNREAD",)),
    traced("expired, then the offset jumped to the minimum").group(CLIENT, offset=9).unread("EXPIRED", 5, 9)
    .expect(CG="EXPIRED", group_reasons=("REMOVED_UNREAD", "!PASSED_UNTRACED")).expect(msg=2, CG="CONSUMED"),
    traced("expired below a consumer that came past it").group(CLIENT, offset=9).unread("EXPIRED", 5, 9, live=1)
    .expect(CG="EXPIRED").expect(msg=2, CG="CONSUMED"),
    traced("expired below a consumer that is not past it").group(CLIENT, offset=7).unread("EXPIRED", 7, 9, live=1)
    .expect(knowledge="INCOMPLETE", CG="UNKNOWN", group_reasons=("REMOVED_UNREAD",)).expect(msg=2, CG="CONSUMED"),
    traced("expired, clients not known").group(CLIENT, offset=7).unread("EXPIRED", 7, 9, live=None)
    .expect(knowledge="INCOMPLETE", CG="UNKNOWN", group_reasons=("REMOVED_UNREAD",)).expect(msg=2, CG="CONSUMED"),
    traced("expired in its queue, and consumed out of the memory of a client").group(CLIENT, offset=9)
    .unread("EXPIRED", 7, 9, live=1).handled(70).expect(CG="CONSUMED").expect(msg=2, CG="CONSUMED"),
    traced("expired and excluded by its filter").group(offset=7, expression="TagB").unread("EXPIRED", 7, 9)
    .expect(CG="FILTERED").expect(msg=2, CG="CONSUMED"),
    traced("expired just now").group(offset=7).unread("EXPIRED", 7, 9, AS_OF - 2)
    .expect(knowledge="INCOMPLETE", CG="UNKNOWN", group_reasons=("TRACE_PENDING",)).expect(msg=2, CG="CONSUMED"),
    traced("expired while trace was lost").group(offset=7).unread("EXPIRED", 7, 9).gap(-1, 3)
    .expect(knowledge="INCOMPLETE", CG="UNKNOWN",
            group_reasons=("REMOVED_UNREAD", "RANGE_NOT_READ_RMQ_SYS_TRACE_TOPIC"))
    .expect(msg=2, CG="CONSUMED"),
    History("expired, the group never traced").pub().stored().scanned().group(offset=7).unread("EXPIRED", 7, 9)
    .expect(knowledge="INCOMPLETE", CG="EXPIRED", group_reasons=("REMOVED_UNREAD", "GROUP_NOT_TRACED")),
    History("expired, passed by a group that never traced").pub().stored().scanned().group(CLIENT)
    .unread("EXPIRED", 7, 9, live=1)
    .expect(knowledge="INCOMPLETE", CG="UNKNOWN", group_reasons=("GROUP_NOT_TRACED",)),
    traced("an expired range of another queue, of other messages and of another time").group(offset=7)
    .unread("EXPIRED", 0, 7).unread("EXPIRED", 8, 9).unread("EXPIRED", 7, 9, -1).unread("EXPIRED", 7, 9, topic="other")
    .unread("EXPIRED", 7, 9, group="CG9").expect(CG="NO_CONSUMER").expect(msg=2, CG="CONSUMED"),
    traced("handed over to a client that is gone, and expired").group(offset=7).before().unread("EXPIRED", 7, 9)
    .expect(knowledge="INCOMPLETE", CG="UNKNOWN", group_reasons=("HANDLER_GONE",)).expect(msg=2, CG="CONSUMED"),
    traced("a retry copy expired").group(offset=9).handled(success=False).retry_copy(10, 1)
    .offset(1, topic="%RETRY%CG").unread("EXPIRED", 0, 2, topic="%RETRY%CG")
    .expect(CG="EXPIRED", group_reasons=("REMOVED_UNREAD",)).expect(msg=2, CG="CONSUMED"),
    traced("a retry copy behind an expired range").group(offset=9).handled(success=False).retry_copy(10, 1)
    .offset(1, topic="%RETRY%CG").unread("EXPIRED", 0, 1, topic="%RETRY%CG").expect(CG="RETRYING")
    .expect(msg=2, CG="CONSUMED"),
    traced("its topic was deleted").group(offset=7).unread("TOPIC_DELETED", 7, None)
    .unread("TOPIC_DELETED", 0, None, group="", live=None)
    .expect(CG="EXPIRED", group_reasons=("TOPIC_DELETED",)).expect(msg=2, CG="CONSUMED"),
    traced("its topic was deleted under a consumer").group(CLIENT, offset=7).unread("TOPIC_DELETED", 7, None, live=2)
    .expect(CG="EXPIRED", group_reasons=("TOPIC_DELETED",)).expect(msg=2, CG="CONSUMED"),
    traced("its topic was deleted, another group had read it").group(offset=7).unread("TOPIC_DELETED", 7, None)
    .unread("TOPIC_DELETED", 0, None, group="", live=None).group(CLIENT, group="CG2").handled(group="CG2", request="R9")
    .expect(CG="EXPIRED", CG2="CONSUMED").expect(msg=2, knowledge="INCOMPLETE", CG="CONSUMED", CG2="UNKNOWN"),
    traced("its topic was deleted after it was passed").group(CLIENT).unread("TOPIC_DELETED", 8, None)
    .unread("TOPIC_DELETED", 0, None, group="", live=None)
    .expect(knowledge="INCOMPLETE", CG="UNKNOWN", group_reasons=("PASSED_UNTRACED", "!TOPIC_DELETED"))
    .expect(msg=2, CG="CONSUMED"),
    History("its topic was deleted, the group never committed").pub().stored().scanned().group(offset=None)
    .unread("TOPIC_DELETED", 0, None, group="", live=None)
    .expect(knowledge="INCOMPLETE", CG="UNKNOWN", group_reasons=("TOPIC_DELETED",)),
    traced("a new topic of this name, expired later").group(CLIENT)
    .unread("TOPIC_DELETED", 0, None, group="", live=None)
    .unread("EXPIRED", 5, 9, 90)
    .expect(knowledge="INCOMPLETE", CG="UNKNOWN", group_reasons=("PASSED_UNTRACED",)).expect(msg=2, CG="CONSUMED"),
    # --- skipped by hand
    traced("skipped, the group had no client").group(CLIENT, offset=9).unread("OFFSET_MOVED", 5, 9)
    .expect(CG="SKIPPED", group_reasons=("OFFSET_MOVED",)).expect(msg=2, CG="CONSUMED"),
    traced("skipped, and then set back").group(offset=7)
    .unread("OFFSET_MOVED", 5, 9).expect(CG="NO_CONSUMER").expect(msg=2, CG="CONSUMED"),
    traced("skipped, and set back and consumed").group(CLIENT, offset=9).unread("OFFSET_MOVED", 5, 9).handled(90)
    .expect(CG="CONSUMED").expect(msg=2, CG="CONSUMED"),
    traced("waiting, its hand-over may be among lost records").group(CLIENT, offset=7).loss(90, 110)
    .expect(knowledge="INCOMPLETE", CG="WAITING", group_reasons=("TRACE_DROPPED_SPOOL_FULL",))
    .expect(msg=2, CG="CONSUMED"),
    traced("waiting, records were lost before it").group(CLIENT, offset=7).loss(-9, -1)
    .expect(CG="WAITING").expect(msg=2, CG="CONSUMED"),
    traced("no consumer, what its last client did may be among lost records").group(offset=7).gap(5, 9)
    .expect(knowledge="INCOMPLETE", CG="NO_CONSUMER", group_reasons=("RANGE_NOT_READ_RMQ_SYS_TRACE_TOPIC",))
    .expect(msg=2, CG="CONSUMED"),
    hung("in flight, its end may be among lost records", AS_OF - 20).loss(AS_OF - 15, AS_OF - 12)
    .expect(knowledge="INCOMPLETE", CG="UNKNOWN", group_reasons=("END_MAY_BE_LOST", "TRACE_DROPPED_SPOOL_FULL")),
    hung("in flight, another client lost records", AS_OF - 20).numbered(-5, 1, "10.9.9.9@7#1")
    .numbered(AS_OF - 12, 2, "10.9.9.9@7#1", dropped=4)
    .sampled("clients", AS_OF - 1, group_name=GROUP, status="OK", client_id="10.9.9.9@7#1", client_host="10.9.9.9:1")
    .expect(CG="IN_FLIGHT"),
    History("skipped, records were lost long after it was stored").pub(-60).stored(-60).scanned().pub(msg=2)
    .stored(offset=3, msg=2).handled(msg=2, request="R8").group(CLIENT, offset=9, known=-62)
    .unread("OFFSET_MOVED", 5, 9, 580).loss(560, 570)
    .expect(knowledge="INCOMPLETE", CG="UNKNOWN", group_reasons=("OFFSET_MOVED", "TRACE_DROPPED_SPOOL_FULL"))
    .expect(msg=2, CG="CONSUMED"),
    History("skipped, records were lost after that").pub(-60).stored(-60).scanned().pub(msg=2)
    .stored(offset=3, msg=2).handled(msg=2, request="R8").group(CLIENT, offset=9, known=-62)
    .unread("OFFSET_MOVED", 5, 9, 580).loss(582, 585)
    .expect(CG="SKIPPED", group_reasons=("OFFSET_MOVED",)).expect(msg=2, CG="CONSUMED"),
    traced("skipped while trace was lost").group(CLIENT, offset=9).unread("OFFSET_MOVED", 5, 9).gap(-1, 90)
    .expect(knowledge="INCOMPLETE", CG="UNKNOWN", group_reasons=("OFFSET_MOVED", "RANGE_NOT_READ_RMQ_SYS_TRACE_TOPIC"))
    .expect(msg=2, CG="CONSUMED"),
    History("skipped by a group that never traced").pub().stored().scanned().group(CLIENT, offset=9)
    .unread("OFFSET_MOVED", 5, 9).expect(knowledge="INCOMPLETE", CG="UNKNOWN", group_reasons=("GROUP_NOT_TRACED",)),
    traced("skipped, properties not kept").group(CLIENT, offset=9, expression="a > 3", expression_type="SQL92")
    .unread("OFFSET_MOVED", 5, 9)
    .expect(knowledge="INCOMPLETE", CG="UNKNOWN", group_reasons=("PROPERTIES_NOT_KEPT",)).expect(msg=2, CG="CONSUMED"),
    # --- filters
    History("filtered").pub().stored().scanned().group(CLIENT, expression="TagB || TagC").expect(CG="FILTERED"),
    History("filtered, no tag").pub().stored(tags="").scanned().group(CLIENT, expression="TagB").expect(CG="FILTERED"),
    History("let pass by its filter").pub().stored().scanned().group(CLIENT, offset=7, expression="TagB||TagA")
    .expect(knowledge="INCOMPLETE", CG="WAITING", group_reasons=("GROUP_NOT_TRACED",)),
    History("a tag is not a part of another").pub().stored(tags="Tag").scanned().group(CLIENT, expression="TagA||ATag")
    .expect(CG="FILTERED"),
    History("filtered by what was in force then").pub().stored().scanned().group(CLIENT, expression="TagB", time=300)
    .group(CLIENT, expression="TagA", known=400).expect(CG="FILTERED"),
    History("clients of the group differ").pub().stored().scanned().group(CLIENT, offset=7, expression="TagB")
    .group(CLIENT, offset=7, expression="TagA")
    .expect(knowledge="INCOMPLETE", CG="WAITING", group_reasons=("GROUP_NOT_TRACED",)),
    traced("clients of the group differ, the group traces others").group(CLIENT, offset=7, expression="TagB")
    .group(CLIENT, offset=7, expression="TagA").expect(msg=2, CG="CONSUMED")
    .expect(knowledge="INCOMPLETE", CG="WAITING", group_reasons=("FILTERS_DIFFER",)),
    traced("not passed, the only sample excludes it").group(CLIENT, offset=7, known=AS_OF - 1, expression="TagB")
    .expect(knowledge="INCOMPLETE", CG="UNKNOWN", group_reasons=("FILTER_SAMPLED_AT",)).expect(msg=2, CG="CONSUMED"),
    traced("not passed, the only sample excludes it, no consumer").offset(7, topic=TOPIC)
    .group(offset=7, known=AS_OF - 1, expression="TagB")
    .expect(knowledge="INCOMPLETE", CG="NO_CONSUMER", group_reasons=("FILTER_SAMPLED_AT",))
    .expect(msg=2, CG="CONSUMED"),
    *FILTER_HISTORIES,
    *POP_HISTORIES,
    *ORDER_HISTORIES,
    *VANISHED_HISTORIES,
    *WHOLE_HISTORIES,
    *FORWARDED_HISTORIES,
    *NAMESPACE_HISTORIES,
    # --- handed over, no end
    History("in flight").pub().stored().scanned().group(CLIENT, offset=7).before(AS_OF - 20, client_id=CLIENT,
                                                                               trace_client_id=CLIENT)
    .expect(CG="IN_FLIGHT"),
    History("hung").pub().stored().scanned().group(CLIENT, offset=7).before(AS_OF - 46, trace_client_id=CLIENT)
    .expect(CG="HUNG"),
    History("in flight, by a clock that is behind").pub(AS_OF - 22).stored(AS_OF - 21).scanned()
    .group(CLIENT, offset=7, known=-60).before(AS_OF - 80, trace_client_id=CLIENT, stored=AS_OF - 19)
    .expect(CG="IN_FLIGHT"),
    History("hung, by a clock that is ahead").pub().stored().scanned().group(CLIENT, offset=7)
    .before(AS_OF - 10, trace_client_id=CLIENT, stored=AS_OF - 48).expect(CG="HUNG"),
    History("hung, its record came late").pub().stored().scanned().group(CLIENT, offset=7)
    .before(AS_OF - 50, trace_client_id=CLIENT, stored=AS_OF - 20).expect(CG="HUNG"),
    History("its second attempt is in flight, by a clock that is behind").pub().stored().scanned().group(CLIENT)
    .handled(success=False).retry_copy(AS_OF - 21, 1).offset(1, topic="%RETRY%CG")
    .before(AS_OF - 80, "R2", 1, trace_client_id=CLIENT, stored=AS_OF - 19).expect(CG="IN_FLIGHT"),
    History("hung, an Apache client known by its address").pub().stored().scanned().group("10.0.0.2@1#9", offset=7)
    .before(100).expect(CG="HUNG"),
    History("its client is gone").pub().stored().scanned().group("10.0.0.2@99#2", offset=7)
    .before(100, trace_client_id="10.0.0.2@77#1")
    .expect(knowledge="INCOMPLETE", CG="WAITING", group_reasons=("HANDLER_GONE",)),
    History("its client is gone and none is left").pub().stored().scanned().group(offset=7).before(100)
    .expect(knowledge="INCOMPLETE", CG="NO_CONSUMER", group_reasons=("HANDLER_GONE",)),
    History("the end may be lost").pub().stored().scanned().group(CLIENT, offset=7).before(100, trace_client_id=CLIENT)
    .numbered(90, 1).numbered(200, 2, dropped=1)
    .expect(knowledge="INCOMPLETE", CG="UNKNOWN", group_reasons=("END_MAY_BE_LOST", "TRACE_DROPPED")),
    History("hung, another client of the group lost records").pub().stored().scanned()
    .group(CLIENT, "10.0.0.3@1#1", offset=7)
    .before(100, trace_client_id=CLIENT).numbered(90, 1, "10.0.0.3@1#1").numbered(200, 2, "10.0.0.3@1#1", dropped=1)
    .expect(CG="HUNG"),
    # --- other messages have its offset now
    traced("lost, no client since").group(offset=7).unread("TRUNCATED", 7, 9)
    .expect(CG="LOST", group_reasons=("TRUNCATED",)).expect(msg=2, CG="CONSUMED"),
    traced("lost, and trace with it, no client since").group(offset=7).unread("TRUNCATED", 7, 9).gap(-1, 90)
    .expect(CG="LOST", group_reasons=("TRUNCATED",)).expect(msg=2, CG="CONSUMED"),
    traced("lost, a client may have had it, passed").group(CLIENT, offset=9).unread("TRUNCATED", 7, 9, live=1)
    .expect(CG="LOST", group_reasons=("TRUNCATED",)).expect(msg=2, CG="CONSUMED"),
    traced("lost, a client may have had it, and trace is lost").group(CLIENT, offset=9)
    .unread("TRUNCATED", 7, 9, live=1).gap(-1, 90)
    .expect(knowledge="INCOMPLETE", CG="UNKNOWN", group_reasons=("TRUNCATED", "RANGE_NOT_READ_RMQ_SYS_TRACE_TOPIC"))
    .expect(msg=2, CG="CONSUMED"),
    traced("lost, a client may still have it").group(CLIENT, offset=7).unread("TRUNCATED", 7, 9, live=1)
    .expect(knowledge="INCOMPLETE", CG="UNKNOWN", group_reasons=("TRUNCATED",)).expect(msg=2, CG="CONSUMED"),
    traced("gone, the queue may have been created again").group(offset=7).unread("RECREATED", 7, 9)
    .expect(knowledge="INCOMPLETE", CG="UNKNOWN", group_reasons=("RECREATED",)).expect(msg=2, CG="CONSUMED"),
    traced("gone, the queue is shorter").group(offset=7).unread("SHORTENED", 7, 9)
    .expect(knowledge="INCOMPLETE", CG="UNKNOWN", group_reasons=("SHORTENED",)).expect(msg=2, CG="CONSUMED"),
    traced("lost, the queue was shorter before").group(offset=7).unread("SHORTENED", 7, 9, time=50)
    .unread("TRUNCATED", 7, 9)
    .expect(CG="LOST", group_reasons=("TRUNCATED",)).expect(msg=2, CG="CONSUMED"),
    traced("stored later than the messages that are gone").group(offset=7).unread("TRUNCATED", 7, 9, time=0)
    .expect(CG="NO_CONSUMER").expect(msg=2, CG="CONSUMED"),
    traced("handled before it was gone").handled().group(offset=7).unread("TRUNCATED", 7, 9).expect(CG="CONSUMED")
    .expect(msg=2, CG="CONSUMED"),
    History("gone, the group never traced").pub().stored().scanned().group(offset=7).unread("TRUNCATED", 7, 9)
    .expect(knowledge="INCOMPLETE", CG="LOST", group_reasons=("TRUNCATED", "GROUP_NOT_TRACED")),
    History("gone, never acknowledged").tried(0, 1, "TIMEOUT", final=True).stored().scanned().group(offset=7)
    .unread("TRUNCATED", 7, 9)
    .expect("SEND_UNCERTAIN", knowledge="INCOMPLETE", CG="UNKNOWN", group_reasons=("TRUNCATED",)),
    # --- trace that was not read yet: the record that is missing may be there
    *(hung(f"{state}, the trace of a broker is not read", AS_OF - age).trace_not_read(AS_OF - 30)
      .expect(knowledge="INCOMPLETE", CG="UNKNOWN", group_reasons=("END_MAY_BE_LOST", "TRACE_NOT_READ_broker-a"))
      for state, age in (("hung", 100), ("in flight", 20))),
    hung("hung, the trace was read again").trace_not_read(AS_OF - 30, AS_OF - 20).trace_not_read(None, status="OK")
    .expect(CG="HUNG"),
    hung("hung, another broker is gone since").trace_not_read(20, 110, "GONE", "broker-b")
    .expect(knowledge="INCOMPLETE", CG="UNKNOWN", group_reasons=("END_MAY_BE_LOST", "TRACE_NOT_READ_broker-b")),
    hung("hung, another broker was gone before").trace_not_read(20, 90, "GONE", "broker-b").expect(CG="HUNG"),
    traced("waiting, the trace is not read").group(CLIENT, offset=7).trace_not_read(500)
    .expect(knowledge="INCOMPLETE", CG="WAITING", group_reasons=("TRACE_NOT_READ_broker-a",))
    .expect(msg=2, CG="CONSUMED"),
    traced("retrying, the trace is not read").group(CLIENT).handled(success=False).retry_copy(10, 1)
    .offset(1, topic="%RETRY%CG").trace_not_read(500)
    .expect(knowledge="INCOMPLETE", CG="RETRYING", group_reasons=("TRACE_NOT_READ_broker-a",))
    .expect(msg=2, CG="CONSUMED"),
    traced("passed, the trace is not read").group(CLIENT).trace_not_read(0)
    .expect(knowledge="INCOMPLETE", CG="UNKNOWN", group_reasons=("PASSED_UNTRACED", "TRACE_NOT_READ_broker-a"))
    .expect(msg=2, CG="CONSUMED"),
    traced("skipped, the trace is not read").group(CLIENT, offset=9).unread("OFFSET_MOVED", 5, 9).trace_not_read(30)
    .expect(knowledge="INCOMPLETE", CG="UNKNOWN", group_reasons=("OFFSET_MOVED", "TRACE_NOT_READ_broker-a"))
    .expect(msg=2, CG="CONSUMED"),
    plain("consumed, the trace is not read further").trace_not_read(0).expect(CG="CONSUMED"),
    stored_and_sent("ended, its end not traced").before(trace_client_id=CLIENT)
    .expect(knowledge="INCOMPLETE", CG="UNKNOWN", group_reasons=("END_NOT_TRACED",)),
    # --- no open state of what an offset has passed, nor without a position
    History("handed over, passed since the horizon").pub().stored().scanned().group(CLIENT, offset=7).offset(8)
    .before(AS_OF - 20, trace_client_id=CLIENT)
    .expect(knowledge="INCOMPLETE", CG="UNKNOWN", group_reasons=("TRACE_PENDING",)),
    History("handed over, one sample").pub().stored().scanned().group(CLIENT, offset=None, known=AS_OF - 1).offset(8)
    .before(100, trace_client_id=CLIENT).expect(knowledge="INCOMPLETE", CG="UNKNOWN", group_reasons=("TRACE_PENDING",)),
    History("handed over, no copy read").pub().group(CLIENT, offset=7).before(AS_OF - 60, trace_client_id=CLIENT)
    .expect(knowledge="INCOMPLETE", CG="UNKNOWN", group_reasons=("POSITION_UNKNOWN",)),
    History("perhaps broadcasting, its client is gone").pub().stored().scanned().before(100, trace_client_id=CLIENT)
    .sampled("clients", AS_OF - 1, group_name=GROUP, status="OFFLINE")
    .expect(knowledge="INCOMPLETE", CG="UNKNOWN", group_reasons=("MESSAGE_MODEL_UNKNOWN",)),
    History("broadcasting, its client is gone").pub().stored().scanned()
    .group("10.0.0.2@99#2", offset=None, model="BROADCASTING").offset(0, topic="other")
    .before(100, trace_client_id="10.0.0.2@77#1")
    .expect(knowledge="INCOMPLETE", CG="UNKNOWN", group_reasons=("END_NOT_TRACED",)),
    History("the retry was read, one sample").pub().stored().scanned().group(CLIENT).handled(success=False)
    .retry_copy(10, 1).offset(2, topic="%RETRY%CG")
    .expect(knowledge="INCOMPLETE", CG="UNKNOWN", group_reasons=("TRACE_PENDING",)),
    History("failed, passed afterwards, no copy read").pub().stored().scanned().group(CLIENT).handled(success=False)
    .expect(knowledge="INCOMPLETE", CG="UNKNOWN", group_reasons=("NEXT_ATTEMPT_NOT_SEEN",)),
    History("failed, no copy read at all").pub().group(CLIENT).handled(500, success=False)
    .expect(knowledge="INCOMPLETE", CG="UNKNOWN", group_reasons=("POSITION_UNKNOWN",)),
    History("failed, perhaps broadcasting").pub().stored().handled(500, success=False)
    .expect(knowledge="INCOMPLETE", CG="UNKNOWN", group_reasons=("MESSAGE_MODEL_UNKNOWN",)),
    # --- consumed
    plain("consumed slowly").pub(msg=2).stored(offset=6, msg=2).handled(cost=1.0, msg=2, request="R2")
    .expect(CG="CONSUMED").expect(msg=2, CG="CONSUMED,CONSUMED_SLOW"),
    stored_and_sent("consumed in a slow listener batch").before().after(4.02, cost=1.0)
    .expect(CG="CONSUMED,CONSUMED_SLOW", group_reasons=("COST_IS_AVERAGE",)),
    stored_and_sent("consumed, our client records each message's time").before().after(4.02, cost=1.0)
    .result(0.3, "SUCCESS", cost=0.3).expect(CG="CONSUMED"),
    stored_and_sent("consumed, no beginning").after()
    .expect(knowledge="INCOMPLETE", CG="CONSUMED", group_reasons=("BEGIN_NOT_TRACED",)),
    stored_and_sent("consumed, end record of an old client").before().after(event_ms=None, group="")
    .expect(CG="CONSUMED"),
    stored_and_sent("an end without beginning or group").after(group="", event_ms=None)
    .expect(knowledge="INCOMPLETE", reasons=("GROUP_NOT_NAMED",), CG="UNKNOWN", group_reasons=("GROUP_NOT_TRACED",)),
    stored_and_sent("end stored before its beginning").after(stored=0.04).before(stored=5).expect(CG="CONSUMED"),
    plain("two groups, one down").group(group="CG2", offset=7)
    .expect(knowledge="INCOMPLETE", CG="CONSUMED", CG2="NO_CONSUMER", group_reasons=("GROUP_NOT_TRACED",)),
    plain("a group that came later, behind the message").group(CLIENT, group="CG2", known=30, offset=None)
    .offset(8, 30, "CG2")
    .expect(knowledge="INCOMPLETE", CG="CONSUMED", CG2="UNKNOWN", group_reasons=("GROUP_SEEN_LATER",)),
    plain("a group that came later, before the message").group(group="CG2", known=30, offset=7)
    .expect(knowledge="INCOMPLETE", CG="CONSUMED", CG2="NO_CONSUMER", group_reasons=("GROUP_NOT_TRACED",)),
    History("looked at afterwards, the group is behind").pub().stored().scanned()
    .group(known=AS_OF - 1, offset=7)
    .expect(knowledge="INCOMPLETE", CG="NO_CONSUMER", group_reasons=("GROUP_NOT_TRACED",)),
    History("looked at afterwards, the group is past it").pub().stored().scanned()
    .group(CLIENT, known=AS_OF - 45, offset=None).offset(8, AS_OF - 45).offset(8)
    .expect(knowledge="INCOMPLETE", CG="UNKNOWN", group_reasons=("GROUP_SEEN_LATER",)),
    # --- whether all groups are known
    plain("never sampled").never_sampled()
    .expect(knowledge="INCOMPLETE", reasons=("GROUPS_NOT_KNOWN",), CG="CONSUMED"),
    plain("sampled first after the message").unsampled(None, 30)
    .expect(knowledge="INCOMPLETE", reasons=("GROUPS_NOT_KNOWN",), CG="CONSUMED"),
    plain("stored while no sample was taken").unsampled(-1, 30)
    .expect(knowledge="INCOMPLETE", reasons=("GROUPS_NOT_KNOWN",), CG="CONSUMED"),
    plain("stored while its broker did not answer").unsampled(-1, 30, BROKER)
    .expect(knowledge="INCOMPLETE", reasons=("GROUPS_NOT_KNOWN",), CG="CONSUMED"),
    plain("stored while another broker did not answer").unsampled(-1, 30, "broker-b").unsampled(-1, 30, "")
    .expect(CG="CONSUMED"),
    History("no copy read, and one broker did not answer").pub().group(CLIENT).handled().unsampled(-1, 30, "")
    .expect(knowledge="INCOMPLETE", reasons=("GROUPS_NOT_KNOWN",), CG="CONSUMED"),
    plain("no sample before it became visible").stored(-30, "DELAY_WAIT", "SCHEDULE_TOPIC_XXXX", real_topic=TOPIC)
    .unsampled(-1, 30).expect(knowledge="INCOMPLETE", reasons=("GROUPS_NOT_KNOWN",), CG="CONSUMED"),
    plain("no sample while it waited").stored(-30, "DELAY_WAIT", "SCHEDULE_TOPIC_XXXX", real_topic=TOPIC)
    .unsampled(-29, -1).expect(CG="CONSUMED"),
    History("no sample since it was stored").pub(AS_OF - 0.9).stored(AS_OF - 0.8).scanned().group(CLIENT, offset=7)
    .handled(AS_OF - 0.7).expect(knowledge="INCOMPLETE", reasons=("GROUPS_NOT_KNOWN",), CG="CONSUMED"),
    History("sent, no copy").tried(0, 1, "ERROR", True, response_code=17).scanned().never_sampled()
    .sampled("queue_ranges", AS_OF - 1, broker_name=BROKER, topic=TOPIC, queue_id=0, min_offset=0, max_offset=9,
             read_offset=9)
    .expect("SEND_FAILED", reasons=("NO_COPY",)),
    plain("a group that came in a gap, behind the message").unsampled(-1, 30).offset(8, 30, "CG2").offset(8, 60, "CG2")
    .expect(knowledge="INCOMPLETE", reasons=("GROUPS_NOT_KNOWN", "GROUPS_INCOMPLETE"), CG="CONSUMED", CG2="UNKNOWN",
            group_reasons=("GROUP_SEEN_LATER",)),
    plain("a group that came between two samples, behind the message").offset(8, 4, "CG2").offset(8, 60, "CG2")
    .expect(knowledge="INCOMPLETE", reasons=("GROUPS_INCOMPLETE", "!GROUPS_NOT_KNOWN"), CG="CONSUMED", CG2="UNKNOWN",
            group_reasons=("GROUP_SEEN_LATER",)),
    plain("a filtered group that came in a gap").unsampled(-1, 30)
    .group(CLIENT, group="CG2", known=30, offset=None, expression="TagB")
    .expect(knowledge="INCOMPLETE", CG="CONSUMED", CG2="UNKNOWN", group_reasons=("GROUP_SEEN_LATER",)),
    plain("a group whose deliveries of another message are traced").unsampled(None, 590)
    .pub(msg=2).stored(offset=8, msg=2).handled(msg=2, group="CG2", request="R2").offset(9)
    .expect(knowledge="INCOMPLETE", CG="CONSUMED", CG2="UNKNOWN", group_reasons=("GROUP_SEEN_LATER",))
    .expect(msg=2, knowledge="INCOMPLETE", CG="UNKNOWN", CG2="CONSUMED", group_reasons=("TRACE_PENDING",)),
    plain("a group that is known by a retry copy of an earlier message").stored(-7200, offset=6, msg=2)
    .pub(-7200, msg=2)
    .stored(-7190, "RETRY", "%RETRY%CG2", 1, 2, group_name="CG2", retry_topic=TOPIC, reconsume_times=1)
    .expect(knowledge="INCOMPLETE", CG="CONSUMED", CG2="UNKNOWN", group_reasons=("CLIENTS_NOT_SAMPLED",))
    .expect(msg=2, knowledge="INCOMPLETE", CG2="RETRYING", group_reasons=("ATTEMPTS_NOT_TRACED",)),
    plain("a group known by its deliveries alone").handled(group="CG3", request="R3")
    .expect(CG="CONSUMED", CG3="CONSUMED"),
    plain("groups of tools and traces").offset(3, -60, "TOOLS_CONSUMER").offset(3, -60, "CID_RMQ_SYS_TRACE")
    .handled(group="TOOLS_CONSUMER", request="R4").expect(CG="CONSUMED"),
    # --- retries
    History("retrying, the copy waits").pub().stored().scanned().group(CLIENT).handled(success=False)
    .retry_copy(0.1, 1, waits=True, due=AS_OF + 10).expect(CG="RETRYING"),
    History("retrying, no copy read").pub().stored().scanned().group(CLIENT).handled(500, success=False)
    .expect(CG="RETRYING"),
    History("consumed after retry").pub().stored().scanned().group(CLIENT).handled(success=False)
    .retry_copy(0.1, 1, waits=True, due=10).retry_copy(10, 1).offset(2, topic="%RETRY%CG")
    .handled(10.1, request="R2", times=1).expect(CG="CONSUMED,CONSUMED_AFTER_RETRY"),
    History("consumed in place after a failure, ordered").pub().stored().scanned().group(CLIENT).handled(success=False)
    .handled(1.1, request="R2", times=1).expect(CG="CONSUMED,CONSUMED_AFTER_RETRY"),
    History("consumed after retry, the first attempt untraced").pub().stored().scanned().group(CLIENT).retry_copy(10, 1)
    .handled(10.1, times=1).expect(knowledge="INCOMPLETE", CG="CONSUMED,CONSUMED_AFTER_RETRY",
                                  group_reasons=("ATTEMPTS_NOT_TRACED",)),
    History("the retry was read and not traced").pub().stored().scanned().group(CLIENT).handled(success=False)
    .retry_copy(10, 1).offset(2, 60, topic="%RETRY%CG").offset(2, topic="%RETRY%CG")
    .expect(knowledge="INCOMPLETE", CG="UNKNOWN", group_reasons=("RETRY_PASSED_UNTRACED",)),
    History("no one to retry").pub().stored().scanned().group().handled(success=False).retry_copy(10, 1)
    .offset(1, topic="%RETRY%CG").expect(CG="RETRYING"),
    History("the tail that was not acknowledged").pub().stored().scanned().group(CLIENT).handled()
    .retry_copy(0.1, 1, waits=True, due=10).expect(CG="RETRYING"),
    History("the tail, consumed at the next attempt").pub().stored().scanned().group(CLIENT).handled().retry_copy(10, 1)
    .handled(10.1, times=1, request="R2").expect(CG="CONSUMED,CONSUMED_AFTER_RETRY"),
    History("consumed, a copy was read and not traced").pub().stored().scanned().group(CLIENT).before()
    .after(code=1).retry_copy(60, 1).offset(2, topic="%RETRY%CG")
    .expect(knowledge="INCOMPLETE", CG="CONSUMED", group_reasons=("ATTEMPTS_NOT_TRACED",)),
    History("consumed, a copy waits for the group").pub().stored().scanned().group(CLIENT).before()
    .after(code=1).retry_copy(60, 1).offset(1, topic="%RETRY%CG").expect(CG="CONSUMED"),
    History("timed out and done twice").pub().stored().scanned().group(CLIENT).before().retry_copy(60, 1)
    .handled(61, times=1, request="R2").after(120, code=1, cost=120)
    .expect(CG="CONSUMED,CONSUMED_SLOW,DUPLICATE_PROCESSING"),
    History("our client records a failure").pub().stored().scanned().group(CLIENT).before().after(success=False, code=2)
    .result(0.03, "EXCEPTION").retry_copy(0.1, 1, waits=True, due=AS_OF + 10).expect(CG="RETRYING"),
    History("the second attempt is in flight").pub().stored().scanned().group(CLIENT).handled(success=False)
    .retry_copy(AS_OF - 6, 1).before(AS_OF - 5, "R2", 1).offset(1, topic="%RETRY%CG").expect(CG="IN_FLIGHT"),
    History("a waiting retry copy, also recorded by the broker").pub().stored().scanned().group(CLIENT)
    .handled(success=False).retry_copy(0.1, 1, waits=True, due=AS_OF + 10)
    .trace("Stored", 0.1, msg_id=unique_id(1), topic="SCHEDULE_TOPIC_XXXX", store_broker_name=BROKER, store_queue_id=0,
           store_queue_offset=1, physical_offset=1200, stored_kind="DELAY", born_host=PRODUCER, store_ms=at(0.1))
    .expect(CG="RETRYING"),
    History("sent back and stored, recorded by the broker alone").pub()
    .trace("Stored", 0.004, msg_id=unique_id(1), topic=TOPIC, store_broker_name=BROKER, store_queue_id=0,
           store_queue_offset=7, physical_offset=1000, stored_kind="NORMAL", born_host=PRODUCER, store_ms=at(0.004))
    .group(CLIENT).handled(success=False)
    .trace("SentBack", 0.1, msg_id=unique_id(1), group_name=GROUP, topic=TOPIC, reconsume_times=1,
           due_ms=at(AS_OF + 10))
    .expect(CG="RETRYING"),
    # --- dead letters
    History("dead, the broker records the cause").pub().stored().scanned().group(CLIENT).handled(success=False)
    .dead_copy(0.1, 1).trace("DeadLettered", 0.1, msg_id=unique_id(1), group_name=GROUP, topic=TOPIC, reconsume_times=1,
                             cause="BY_HANDLER").expect(CG="DEAD_LETTERED"),
    History("dead, attempts exhausted").pub().stored().scanned().group(CLIENT).handled(success=False).retry_copy(10, 1)
    .handled(10.1, success=False, request="R2", times=1).dead_copy(10.2, 2)
    .expect(CG="DEAD_LETTERED", group_reasons=("CAUSE_INFERRED",)),
    History("dead, ordered give-up").pub().stored().scanned().group(CLIENT).handled(success=False)
    .handled(1.1, success=False, request="R2", times=1).dead_copy(10.2, 2, -1).expect(CG="DEAD_LETTERED"),
    History("dead, put back and consumed").pub().stored().scanned().group(CLIENT, offset=12).handled(success=False)
    .dead_copy(10, 1).stored(50, "RESENT", offset=11, origin_msg_id="X", born_ms=at(50)).handled(51, request="R9")
    .expect(CG="CONSUMED,RESENT"),
    # --- put back by an operator, under its id
    History("dead, put back into its group alone").pub().stored().scanned().group(CLIENT).handled(success=False)
    .dead_copy(10, 1).put_back(50, 3).handled(51, request="R9").expect(CG="CONSUMED,RESENT"),
    History("dead, put back into one of two groups").pub().stored().scanned().group(CLIENT).group(CLIENT, group="CG2")
    .handled(success=False).handled(group="CG2", request="R2").dead_copy(10, 1).put_back(50, 3)
    .handled(51, request="R9").expect(CG="CONSUMED,RESENT", CG2="CONSUMED"),
    History("dead, put back and consumed by another group again").pub().stored().scanned().group(CLIENT, offset=12)
    .group(CLIENT, group="CG2", offset=12).handled(success=False).handled(group="CG2", request="R2").dead_copy(10, 1)
    .stored(50, "RESENT", offset=11, origin_msg_id="X", born_ms=at(50)).handled(51, request="R9")
    .handled(51, group="CG2", request="R10").expect(CG="CONSUMED,RESENT", CG2="CONSUMED,RESENT"),
    History("dead, put back, failed and dead again").pub().stored().scanned().group(CLIENT, offset=12)
    .handled(success=False).dead_copy(10, 1).stored(50, "RESENT", offset=11, origin_msg_id="X", born_ms=at(50))
    .handled(51, success=False, request="R9").expect(CG="DEAD_LETTERED,RESENT"),
    History("dead, put back twice and delivered a third time").pub().stored().scanned().group(CLIENT, offset=13)
    .handled(success=False).dead_copy(10, 1).stored(50, "RESENT", offset=11, origin_msg_id="X", born_ms=at(50))
    .handled(51, request="R9").handled(52, request="R10")
    .expect(CG="CONSUMED,RESENT,DUPLICATE_DELIVERY"),
    History("retried, its copies have the original's offset id").pub().stored().scanned().group(CLIENT)
    .handled(success=False).retry_copy(0.1, 1, waits=True, due=10, origin_msg_id=offset_id(0))
    .retry_copy(10, 1, origin_msg_id=offset_id(0)).handled(10.1, times=1, request="R2")
    .expect(CG="CONSUMED,CONSUMED_AFTER_RETRY"),
    History("suspended by a POP consumer, which does not count as an attempt").pub().stored().scanned().group(CLIENT)
    .handled(success=False).retry_copy(10, 0).handled(10.1, request="R2").expect(CG="CONSUMED"),
    # --- stored more than once by producers
    plain("sent twice by the application").pub(3, queue_id=3)
    .stored(3.004, offset=8, born_ms=at(3)).offset(9).handled(3.02, request="R2")
    .expect(message="DUPLICATE_SEND", CG="CONSUMED,DUPLICATE_PROCESSING", group_reasons=("STORED_AGAIN",)),
    History("a timed out try is stored, its retry too").tried(0, 1, "TIMEOUT", cost=3).tried(3, 2, "OK", True)
    .pub(3, offset_msg_id=offset_id(1)).stored().stored(3.004, offset=8, born_ms=at(3)).scanned()
    .group(CLIENT, offset=9).handled().handled(3.02, request="R2", success=True)
    .expect("SEND_OK,SEND_SLOW,SEND_RETRIED", "DUPLICATE_SEND", CG="CONSUMED,DUPLICATE_PROCESSING"),
    History("only the last try of a send is traced, the first one is stored").pub(3, offset_msg_id=offset_id(1))
    .stored().stored(3.004, offset=8, born_ms=at(3)).scanned().group(CLIENT, offset=9).handled()
    .expect(message="DUPLICATE_SEND", CG="CONSUMED", knowledge="INCOMPLETE", group_reasons=("COPIES_NOT_TRACED",)),
    History("sent twice, both fail, the first delivery of one is not traced").pub().pub(1).stored()
    .stored(1.004, offset=8, born_ms=at(1)).scanned().group(CLIENT, offset=9).handled(success=False)
    .retry_copy(10, 1).retry_copy(11, 1, queue_offset=2).offset(3, topic="%RETRY%CG")
    .handled(10.1, times=1, request="R2").handled(11.1, times=1, request="R3")
    .expect(message="DUPLICATE_SEND", knowledge="INCOMPLETE", group_reasons=("COPIES_NOT_TRACED",),
            CG="CONSUMED,CONSUMED_AFTER_RETRY,DUPLICATE_PROCESSING"),
    History("sent twice, the trace alone").pub(offset_msg_id="A").pub(1, offset_msg_id="B").group(CLIENT).handled()
    .handled(1.1, request="R2").expect(message="DUPLICATE_SEND", CG="CONSUMED,DUPLICATE_PROCESSING"),
    History("sent twice, delivered three times").pub().pub(1).stored().stored(1.004, offset=8, born_ms=at(1)).scanned()
    .group(CLIENT, offset=9).handled().handled(1.1, request="R2").handled(9, request="R3")
    .expect(message="DUPLICATE_SEND", CG="CONSUMED,DUPLICATE_DELIVERY,DUPLICATE_PROCESSING"),
    History("sent twice to another broker because a flush took too long").pub(success=False, offset_msg_id="A")
    .pub(0.1, offset_msg_id="B").group(CLIENT).handled().handled(0.2, request="R2")
    .expect("SEND_OK,SEND_DEGRADED", "DUPLICATE_SEND", CG="CONSUMED,DUPLICATE_PROCESSING"),
    History("sent again under another id").pub().stored(keys="o1").pub(3, msg=2)
    .stored(10.004, offset=8, msg=2, keys="o1").scanned().group(CLIENT, offset=9).handled()
    .handled(10.1, msg=2, request="R2").expect(reasons=("!SENT_BEFORE",), CG="CONSUMED")
    .expect(msg=2, message="DUPLICATE_SEND", reasons=("SENT_BEFORE",), CG="CONSUMED"),
    History("sent three times under other ids, the first one twice").pub(offset_msg_id="A").pub(1, offset_msg_id="B")
    .pub(2, msg=2).pub(9, msg=3).stored(keys="o1").stored(1, offset=8, keys="o1", born_ms=at(1))
    .stored(2, offset=9, msg=2, keys="o1").stored(10.5, "DELAYED", offset=10, msg=3, keys="o1").scanned()
    .expect(message="DUPLICATE_SEND", reasons=("!SENT_BEFORE",))
    .expect(msg=2, message="DUPLICATE_SEND", reasons=("SENT_BEFORE",))
    .expect(msg=3, message="DUPLICATE_SEND", reasons=("SENT_BEFORE",)),
    # --- near misses: one of the equal things differs, the time is longer, there is no key
    History("one key with different bodies").pub().stored(keys="o1").pub(1, msg=2)
    .stored(1, offset=8, msg=2, keys="o1", body_crc=2).pub(2, msg=3)
    .stored(2, offset=9, msg=3, keys="o1", body_size=11).pub(3, msg=4)
    .stored(3, offset=10, msg=4, keys="o1", tags="TagB").pub(4, msg=5).stored(4, offset=11, msg=5, keys="o1 o2")
    .pub(5, msg=6).stored(5, topic="bills", msg=6, keys="o1").pub(10, msg=7)
    .stored(10.005, offset=12, msg=7, keys="o1").scanned()
    .expect().expect(msg=2).expect(msg=3).expect(msg=4).expect(msg=5).expect(msg=6, knowledge="COMPLETE")
    .expect(msg=7),
    History("equal bodies without keys").pub().stored().pub(1, msg=2).stored(1, offset=8, msg=2).scanned()
    .expect().expect(msg=2),
    History("a half message, and an equal message in its place").pub(msg_type=1)
    .stored(kind="HALF", topic="RMQ_SYS_TRANS_HALF_TOPIC", real_topic=TOPIC, keys="o1").pub(1, msg=2)
    .stored(1, offset=8, msg=2, keys="o1").scanned()
    .expect(knowledge="INCOMPLETE", reasons=("TRANSACTION_NOT_KNOWN",)).expect(msg=2),
    # --- near misses: the broker's own copies, another topic
    plain("a scheduled message that the broker delivers twice after a crash").delay_wait(5, 2)
    .stored(5.1, "DELAYED", offset=8, delay_level=2).stored(9, "DELAYED", offset=9, delay_level=2).offset(10)
    .expect(CG="CONSUMED", knowledge="INCOMPLETE", group_reasons=("COPIES_NOT_TRACED",)),
    plain("the same, the level taken from the delivered copies").delay_wait(5, 2)
    .stored(5.1, offset=8).stored(9, offset=9).offset(10)
    .expect(CG="CONSUMED", knowledge="INCOMPLETE", group_reasons=("COPIES_NOT_TRACED",)),
    History("a committed transaction has two copies of its half message").pub(msg_type=1)
    .stored(kind="HALF", topic="RMQ_SYS_TRANS_HALF_TOPIC", real_topic=TOPIC)
    .stored(30, kind="HALF", topic="RMQ_SYS_TRANS_HALF_TOPIC", offset=8, real_topic=TOPIC).stored(31).scanned()
    .group(CLIENT).handled(31.2).expect(message="TX_COMMITTED", CG="CONSUMED"),
    plain("forwarded to another topic under its id").stored(5, topic="archive")
    .expect(CG="CONSUMED"),
    plain("the trace record of its send came twice").pub(queue_id=3, offset_msg_id="A").expect(CG="CONSUMED"),
    # --- duplicates
    plain("delivered twice").handled(5, request="R2").expect(CG="CONSUMED,DUPLICATE_DELIVERY,DUPLICATE_PROCESSING"),
    stored_and_sent("delivered again after a crash").before().handled(30, request="R2")
    .expect(knowledge="INCOMPLETE", CG="CONSUMED,DUPLICATE_DELIVERY", group_reasons=("END_NOT_TRACED",)),
    History("handed out twice, one try may have stored a copy that is not read").tried(0, 1, "TIMEOUT", cost=0.1)
    .tried(0.1, 2, "OK", True).pub(0.1, trace_client_id="10.0.0.1@5#1").group(CLIENT).handled(0.2)
    .handled(0.3, request="R2").expect("SEND_OK,SEND_RETRIED", knowledge="INCOMPLETE", reasons=("TOPIC_NOT_SCANNED",),
                                       CG="CONSUMED,DUPLICATE_PROCESSING"),
    History("handed out twice, sent once, no copy read").pub(trace_client_id="10.0.0.1@5#1").group(CLIENT).handled(0.2)
    .handled(0.3, request="R2").expect(knowledge="INCOMPLETE", CG="CONSUMED,DUPLICATE_PROCESSING",
                                       group_reasons=("TOPIC_NOT_SCANNED",)),
    History("handed out twice, a client sent it that does not record its tries, no copy read").pub().group(CLIENT)
    .handled(0.2).handled(0.3, request="R2")
    .expect(knowledge="INCOMPLETE", CG="CONSUMED,DUPLICATE_PROCESSING", group_reasons=("TOPIC_NOT_SCANNED",)),
    History("handed out twice without any send or copy").before(group="CG").handled(request="R2")
    .handled(1, request="R3")
    .expect("", knowledge="INCOMPLETE", reasons=("NO_SEND_RECORD",), CG="CONSUMED", group_reasons=("END_NOT_TRACED",)),
    # --- broadcasting
    History("broadcasting").pub().stored().scanned().group(CLIENT, "10.0.0.3@1#1", offset=None, model="BROADCASTING")
    .handled().handled(0.03, request="R2").expect(CG="CONSUMED"),
    History("broadcasting, its clients recorded their local offsets").pub().stored().scanned()
    .group(CLIENT, "10.0.0.3@1#1", offset=None, model="BROADCASTING").handled().handled(0.03, request="R2")
    .trace("OffsetCommit", 1, group_name=GROUP, topic=TOPIC, store_broker_name=BROKER, store_queue_id=0,
           consumer_offset=8)
    .expect(CG="CONSUMED"),
    History("broadcasting, nothing delivered").pub().stored().scanned().group(CLIENT, offset=None, model="BROADCASTING")
    .expect(),
    History("broadcasting, failed and dropped").pub().stored().scanned()
    .group(CLIENT, offset=None, model="BROADCASTING")
    .handled(success=False).expect(knowledge="INCOMPLETE", CG="UNKNOWN", group_reasons=("BROADCAST_FAILURE",)),
    # --- lite pull
    History("lite pull, offset moved").pub().stored().scanned().group(CLIENT, consume_type="CONSUME_ACTIVELY")
    .handled(cost=0).expect(CG="CONSUMED"),
    History("lite pull, offset did not move").pub().stored().scanned()
    .group(CLIENT, offset=7, consume_type="CONSUME_ACTIVELY")
    .handled(cost=0, trace_client_id=CLIENT).expect(CG="HUNG"),
    History("perhaps a lite pull").pub().stored().scanned().group(CLIENT, offset=7, consume_type="").handled(cost=0)
    .expect(knowledge="INCOMPLETE", CG="UNKNOWN", group_reasons=("LITE_PULL_POSSIBLE",)),
    # --- batches
    batch("batch, joined by keys")
    .handled(msg=99, request="R1", keys="k1").handled(msg=99, request="R2", keys="k2", success=False)
    .retry_copy(0.1, 1, waits=True, due=AS_OF + 10, msg=99, origin_msg_id=offset_id(1))
    .expect(msg=1, CG="CONSUMED").expect(msg=2, CG="RETRYING")
    .expect(msg=3, knowledge="INCOMPLETE", CG="UNKNOWN", group_reasons=("PASSED_UNTRACED",)),
    batch("batch, joined by position", ("", "", ""))
    .before(msg=99).after(msg=99).result(0.03, "SUCCESS", "R1", msg=99, offset=7)
    .before(msg=99, request="R2").after(msg=99, request="R2", success=False, code=2)
    .result(0.03, "EXCEPTION", "R2", msg=99, offset=8)
    .retry_copy(10, 1, msg=99, origin_msg_id=offset_id(1))
    .handled(10.1, times=1, msg=99, request="R5").result(10.11, "SUCCESS", "R5", 1, msg=99, offset=1)
    .expect(msg=1, CG="CONSUMED").expect(msg=2, CG="CONSUMED,CONSUMED_AFTER_RETRY")
    .expect(msg=3, knowledge="INCOMPLETE", CG="UNKNOWN", group_reasons=("PASSED_UNTRACED",)),
    batch("batch, all counted", ("", "", "")).handled(msg=99).handled(msg=99, request="R2")
    .handled(msg=99, request="R3")
    .expect(msg=1, CG="CONSUMED", group_reasons=("BATCH_COUNTED",)).expect(msg=2, CG="CONSUMED")
    .expect(msg=3, CG="CONSUMED"),
    batch("batch, one of three missing", ("", "", "")).handled(msg=99).handled(msg=99, request="R2")
    .expect(msg=1, knowledge="INCOMPLETE", CG="UNKNOWN", group_reasons=("BATCH_ITEM_UNKNOWN",))
    .expect(msg=2, knowledge="INCOMPLETE", CG="UNKNOWN").expect(msg=3, knowledge="INCOMPLETE", CG="UNKNOWN"),
    batch("batch, a listener gets all of it at once", ("", "", ""))
    .handled_at_once(3).expect(msg=1, CG="CONSUMED", group_reasons=("BATCH_COUNTED",)).expect(msg=2, CG="CONSUMED")
    .expect(msg=3, CG="CONSUMED"),
    batch("batch, a listener gets two at once, distinguished by keys").handled_at_once(2, "k1", "k2")
    .handled(msg=99, request="R2", keys="k3")
    .expect(msg=1, CG="CONSUMED").expect(msg=2, CG="CONSUMED").expect(msg=3, CG="CONSUMED"),
    batch("batch, a listener gets two at once and the third is not traced", ("", "", "")).handled_at_once(2)
    .expect(msg=1, knowledge="INCOMPLETE", CG="UNKNOWN", group_reasons=("BATCH_ITEM_UNKNOWN",))
    .expect(msg=2, knowledge="INCOMPLETE", CG="UNKNOWN").expect(msg=3, knowledge="INCOMPLETE", CG="UNKNOWN"),
    batch("batch, a listener gets all at once and our client records each result", ("", "", "")).handled_at_once(3)
    .result(0.03, "SUCCESS", "R1", msg=99, offset=7).result(0.03, "SUCCESS", "R1", msg=99, offset=8)
    .result(0.03, "EXCEPTION", "R1", msg=99, offset=9).retry_copy(0.1, 1, waits=True, due=AS_OF + 10, msg=99,
                                                                 origin_msg_id=offset_id(2))
    .expect(msg=1, CG="CONSUMED").expect(msg=2, CG="CONSUMED").expect(msg=3, CG="RETRYING"),
    batch("batch, a listener gets all at once, one result is not traced", ("", "", "")).handled_at_once(3)
    .result(0.03, "SUCCESS", "R1", msg=99, offset=7).result(0.03, "SUCCESS", "R1", msg=99, offset=9)
    .expect(msg=1, CG="CONSUMED", knowledge="INCOMPLETE", group_reasons=("BEGIN_NOT_TRACED",))
    .expect(msg=3, CG="CONSUMED", knowledge="INCOMPLETE")
    .expect(msg=2, knowledge="INCOMPLETE", CG="UNKNOWN", group_reasons=("PASSED_UNTRACED",)),
    History("one id stored twice, delivered in one listener batch").pub().pub(0.001).stored().stored(0.005, offset=8)
    .scanned().group(CLIENT, offset=9).handled_at_once(2, msg=1)
    .expect(message="DUPLICATE_SEND", CG="CONSUMED,DUPLICATE_PROCESSING", group_reasons=("STORED_AGAIN",)),
    History("batch, topic not read").pub(item_count=2).pub(msg=2, item_no=1, item_count=2).group(CLIENT)
    .handled(msg=99).handled(msg=99, request="R2")
    .expect(knowledge="INCOMPLETE", CG="UNKNOWN", group_reasons=("BATCH_NOT_JOINED",))
    .expect(msg=2, knowledge="INCOMPLETE", CG="UNKNOWN")
    .expect("", msg=99, knowledge="INCOMPLETE", CG="CONSUMED"),
    # --- transactions: the copies at the broker decide
    transaction("committed").ended(3).stored(0.1, "COMMIT").handled(0.2)
    .expect(message="TX_COMMITTED", CG="CONSUMED"),
    transaction("committed, its op record not written yet").stored(AS_OF - 0.5, "COMMIT")
    .expect(message="TX_COMMITTED", knowledge="INCOMPLETE", reasons=("GROUPS_INCOMPLETE",), CG="UNKNOWN",
            group_reasons=("TRACE_PENDING",)),
    transaction("committed after a check").half(30, 1).stored(31, "COMMIT").ended(34, 1).handled(32)
    .expect(message="TX_COMMITTED", CG="CONSUMED"),
    transaction("committed after it was given up").half(30, 1).given_up(60).stored(70, "COMMIT").handled(71)
    .expect(message="TX_COMMITTED", CG="CONSUMED"),
    History("committed, known from its copy alone").pub().stored(kind="COMMIT").scanned().group(CLIENT).handled()
    .expect(message="TX_COMMITTED", CG="CONSUMED"),
    History("committed, known by its send record and its delivery alone").pub(msg_type=1).group(CLIENT).handled()
    .expect(message="TX_COMMITTED", CG="CONSUMED"),
    History("committed, delivered without a copy").pub(msg_type=1).scanned().group(CLIENT).handled()
    .expect(message="TX_COMMITTED", knowledge="INCOMPLETE", reasons=("COPY_NOT_FOUND",), CG="CONSUMED"),
    transaction("rolled back").ended(3).expect(message="TX_ROLLED_BACK", reasons=("!GROUPS_NOT_KNOWN",)),
    transaction("rolled back after a check").half(30, 1).ended(33, 1).expect(message="TX_ROLLED_BACK"),
    transaction("rolled back while it was checked").half(2, 1).ended(3).given_up(90).expect(message="TX_ROLLED_BACK"),
    transaction("rolled back, although its producer asked for a commit").asked(0.2, "COMMIT_MESSAGE").ended(3)
    .expect(message="TX_ROLLED_BACK"),
    transaction("rolled back on one broker, open on another").ended(3)
    .half(0.004, 4, broker_name="broker-b").expect(message="TX_PENDING"),
    transaction("rolled back, messages of its topic expired before and after").gap(-60, -1, TOPIC).gap(30, 60, TOPIC)
    .ended(3).expect(message="TX_ROLLED_BACK"),
    *(transaction(f"ended, {what} of its time expired").gap(-1, 60, topic).ended(3)
      .expect(knowledge="INCOMPLETE", reasons=("TRANSACTION_NOT_KNOWN",), CG="UNKNOWN")
      for what, topic in (("messages", TOPIC), ("half messages", "RMQ_SYS_TRANS_HALF_TOPIC"),
                          ("op records", "RMQ_SYS_TRANS_OP_HALF_TOPIC"))),
    transaction("not ended, op records expired since").gap(30, 60, "RMQ_SYS_TRANS_OP_HALF_TOPIC")
    .expect(knowledge="INCOMPLETE", reasons=("TRANSACTION_NOT_KNOWN",), CG="UNKNOWN"),
    transaction("ended a moment ago").ended(AS_OF - 5)
    .expect(knowledge="INCOMPLETE", reasons=("TRANSACTION_NOT_KNOWN",), CG="UNKNOWN",
            group_reasons=("TRANSACTION_NOT_KNOWN",)),
    History("ended, its topic not read").pub(msg_type=1).half(kind="HALF").ended(3).group(CLIENT)
    .expect(knowledge="INCOMPLETE", reasons=("TRANSACTION_NOT_KNOWN",), CG="UNKNOWN"),
    History("ended, its topic read later").pub(msg_type=1).half(kind="HALF").ended(3).scanned_ends().group(CLIENT)
    .expect(knowledge="INCOMPLETE", reasons=("TRANSACTION_NOT_KNOWN",), CG="UNKNOWN"),
    History("ended, its topic not read since").pub(msg_type=1).half().ended(300).scanned_ends(200).group(CLIENT)
    .expect(knowledge="INCOMPLETE", reasons=("TRANSACTION_NOT_KNOWN",), CG="UNKNOWN"),
    History("ended, no half message read").pub(msg_type=1).ended(3).scanned_ends().group(CLIENT)
    .expect(knowledge="INCOMPLETE", reasons=("TRANSACTION_NOT_KNOWN",), CG="UNKNOWN"),
    transaction("pending").expect(message="TX_PENDING"),
    transaction("pending, its producer's requests were lost").asked(0.2, "COMMIT_MESSAGE").half(30, 1)
    .asked(31, "ROLLBACK_MESSAGE").expect(message="TX_PENDING"),
    transaction("asked to end a moment ago").asked(AS_OF - 3, "ROLLBACK_MESSAGE")
    .expect(knowledge="INCOMPLETE", reasons=("TRANSACTION_NOT_KNOWN",), CG="UNKNOWN"),
    History("pending, op records not read").pub(msg_type=1).half().scanned().group(CLIENT)
    .expect(knowledge="INCOMPLETE", reasons=("TRANSACTION_NOT_KNOWN",), CG="UNKNOWN"),
    History("pending, not read lately").pub(msg_type=1).half().scanned_ends(300).group(CLIENT)
    .expect(knowledge="INCOMPLETE", reasons=("TRANSACTION_NOT_KNOWN",), CG="UNKNOWN"),
    transaction("checks exhausted").half(30, 1).given_up(60).expect(message="TX_CHECKS_EXHAUSTED"),
    History("checks exhausted, op records not read").pub(msg_type=1).half().half(30, 1).given_up(60).scanned()
    .group(CLIENT).expect(message="TX_CHECKS_EXHAUSTED"),
    History("checks exhausted, neither op records nor the topic read").pub(msg_type=1).half(kind="HALF").given_up(60)
    .group(CLIENT).expect(knowledge="INCOMPLETE", reasons=("TRANSACTION_NOT_KNOWN",), CG="UNKNOWN"),
    transaction("checks resumed").half(30, 1).given_up(60).half(100, 6_000).expect(message="TX_PENDING"),
    transaction("checks exhausted, then rolled back").half(30, 1).given_up(60).ended(70, 1)
    .expect(message="TX_ROLLED_BACK"),
    History("half message, known from its send record alone").pub(msg_type=1).scanned_ends().group(CLIENT)
    .expect(knowledge="INCOMPLETE", reasons=("TRANSACTION_NOT_KNOWN", "!COPY_NOT_FOUND"), CG="UNKNOWN",
            group_reasons=("TRANSACTION_NOT_KNOWN", "!POSITION_UNKNOWN")),
    History("half message of a topic without groups").pub(msg_type=1).scanned()
    .expect(knowledge="INCOMPLETE", reasons=("TRANSACTION_NOT_KNOWN",)),
    # --- recalls
    History("recalled").pub().timer_wait(60).recall(10, 60).scanned().group(CLIENT, offset=7)
    .expect(message="RECALLED"),
    History("recalled, not due yet").pub().timer_wait(AS_OF + 60).recall(10, AS_OF + 60).scanned()
    .group(CLIENT, offset=7).expect(message="RECALLED"),
    History("recalled, delivered nevertheless").pub().timer_wait(60).recall(59, 60).stored(60.1, "DELAYED").scanned()
    .group(CLIENT).handled(60.2).expect(CG="CONSUMED"),
    History("recalled at another time than its own").pub().timer_wait(60).recall(10, 50).scanned()
    .group(CLIENT, offset=7)
    .expect(knowledge="INCOMPLETE", reasons=("RECALL_NOT_CONFIRMED",), CG="WAITING"),
    History("recalled, known from its trace alone").pub().scanned().group(CLIENT, offset=7)
    .trace("Recall", 10, msg_id=unique_id(1), group_name="PG", topic=TOPIC, success=True)
    .expect(knowledge="INCOMPLETE", reasons=("RECALL_NOT_CONFIRMED",), CG="UNKNOWN"),
    History("a recall that was refused").pub().timer_wait(AS_OF + 60).scanned().group(CLIENT, offset=7)
    .trace("Recall", 10, msg_id=unique_id(1), group_name="PG", topic=TOPIC, success=False)
    .expect(message="SCHEDULED", CG="WAITING"),
)
# fmt: on

assert len({history.name for history in HISTORIES}) == len(HISTORIES), "two histories have one name"


def units(relation: str, rows: Iterable[Row]) -> list[list[Row]]:
    """The rows of a relation as they are read: all records of a trace message together, others one by one."""
    if relation != "trace_events":
        return [[row] for row in rows]
    messages: dict[tuple[str, int, int], list[Row]] = {}
    for row in rows:
        messages.setdefault((row["cluster"], row["queue_id"], row["queue_offset"]), []).append(row)
    return list(messages.values())


def evidence(histories: tuple[History, ...] = HISTORIES) -> dict[str, list[Row]]:
    """All rows of `histories` by relation."""
    rows: dict[str, list[Row]] = {}
    for history in histories:
        for relation, some in history.rows.items():
            rows.setdefault(relation, []).extend(some)
    return rows
