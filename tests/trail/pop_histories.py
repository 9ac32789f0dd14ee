"""Labelled histories of groups that pop: copies in POP's retry topics, offsets that move at the pop, check points."""

from __future__ import annotations

from typing import Any

from tests.trail.story import AS_OF, BROKER, CLIENT, GROUP, TOPIC, History, at, offset_id, unique_id

V1, V2 = f"%RETRY%{GROUP}_{TOPIC}", f"%RETRY%{GROUP}+{TOPIC}"


def popped(name: str) -> History:
    """A stored message that a group has popped: its offset is past it."""
    return History(name).pub().stored().scanned().group(CLIENT)


def again(history: History, time: float = 12, times: int = 1, topic: str = V1) -> History:
    """A copy that the broker made after the time of a pop was up."""
    name = topic.removeprefix("%RETRY%")
    row: dict[str, Any] = {"group_name": name, "reconsume_times": times}
    return history.stored(time, "RETRY_POP", topic, times, **row)


def other(history: History) -> History:
    """An earlier message, which the group consumed."""
    return history.pub(-1, msg=2).stored(-1, offset=3, msg=2).handled(-0.9, msg=2, request="R8")


def on_retries(history: History, offset: int, topic: str = V1) -> History:
    """The group's offset in POP's retry topic, since long before the judgement."""
    return history.offset(0, -60, topic=topic).offset(offset, 300, topic=topic).offset(offset, topic=topic)


TIMER = "rmq_sys_wheel_timer"


def popped_at(
    history: History,
    pop: float,
    until: float = 60,
    acked: float | None = None,
    times: int = 0,
    check_point: bool = True,
    ack_offset: int = 3,
) -> History:
    """The broker's records of a pop, which are read up to the judgement. acked: when it was acknowledged. Its check
    point is in place 2."""
    row: dict[str, Any] = {
        "group_name": GROUP,
        "real_topic": "rmq_sys_REVIVE_LOG_c",
        "retry_topic": TOPIC,
        "origin_msg_id": offset_id(times),
        "reconsume_times": times,
        "born_ms": at(pop),
        "due_ms": at(until),
    }
    if check_point:
        history.stored(pop, "POP_CK", TIMER, 2, **row, tags="ck")
    if acked is not None:
        history.stored(acked, "POP_ACK", TIMER, ack_offset, **row | {"due_ms": at(until - until % 1)}, tags="ack")
    return history.scanned(TIMER)


# fmt: off
RECORDED_POPS = (
    popped_at(popped("POP, acknowledged"), 0.02, acked=0.05)
    .expect(knowledge="INCOMPLETE", CG="CONSUMED", group_reasons=("POP_ACKED",)),
    popped_at(popped("POP, acknowledged, its check point was not read"), 0.02, acked=0.05, check_point=False)
    .expect(knowledge="INCOMPLETE", CG="CONSUMED", group_reasons=("POP_ACKED",)),
    popped_at(popped("POP, acknowledged and traced").handled(), 0.01, acked=0.05)
    .expect(CG="CONSUMED"),
    popped_at(popped("POP, acknowledged, its end is not traced").before(), 0.01, acked=0.05)
    .expect(knowledge="INCOMPLETE", CG="CONSUMED", group_reasons=("POP_ACKED", "END_NOT_TRACED")),
    popped_at(popped("POP, acknowledged, the timer rounds its time down"), 0.02, 60.9, acked=60.5)
    .expect(knowledge="INCOMPLETE", CG="CONSUMED", group_reasons=("POP_ACKED",)),
    popped_at(popped("POP, given up by the client").handled(success=False), 0.01, acked=0.05)
    .expect(knowledge="INCOMPLETE", CG="UNKNOWN", group_reasons=("POP_GIVEN_UP",)),
    popped_at(again(popped("POP, its second attempt was acknowledged and not traced").handled(success=False)), 13, 73,
              acked=13.1, times=1)
    .expect(knowledge="INCOMPLETE", CG="UNKNOWN", group_reasons=("POP_GIVEN_UP",)),
    popped_at(again(popped("POP, acknowledged after more attempts than consumers make"), times=17), 13, 73, acked=13.1,
              times=17)
    .expect(knowledge="INCOMPLETE", CG="UNKNOWN", group_reasons=("POP_GIVEN_UP",)),
    popped_at(popped("POP, acknowledged just now"), 560, 620, acked=595)
    .expect(knowledge="INCOMPLETE", CG="UNKNOWN", group_reasons=("TRACE_PENDING",)),
    popped_at(popped("POP, acknowledged, a copy may still be made"), 560, 620, acked=571)
    .expect(knowledge="INCOMPLETE", CG="UNKNOWN", group_reasons=("TRACE_PENDING",)),
    popped_at(popped("POP, acknowledged, no copy was made"), 560, 620, acked=569)
    .expect(knowledge="INCOMPLETE", CG="CONSUMED", group_reasons=("POP_ACKED",)),
    on_retries(again(popped_at(popped("POP, given back for a second: its new check point is not read"), 0.02, 60,
                               acked=0.05), 4), 0)
    .expect(knowledge="INCOMPLETE", CG="RETRYING"),
    popped_at(popped("POP, for a second: its check point is not read"), 0.2, 1.2, acked=0.5, check_point=False)
    .expect(knowledge="INCOMPLETE", CG="CONSUMED", group_reasons=("POP_ACKED",)),
    popped_at(popped("POP, for a second: maybe acknowledged too late"), 0.2, 1.2, acked=1.1, check_point=False)
    .expect(knowledge="INCOMPLETE", CG="UNKNOWN", group_reasons=("GROUP_NOT_TRACED",)),
    popped_at(popped("POP, acknowledged too late"), 0.02, 60, acked=61)
    .expect(knowledge="INCOMPLETE", CG="UNKNOWN", group_reasons=("GROUP_NOT_TRACED",)),
    popped_at(popped_at(popped("POP, the client takes more time"), 0.02, 60, acked=30), 29.9, AS_OF + 30)
    .expect(knowledge="INCOMPLETE", CG="UNKNOWN", group_reasons=("POP_NOT_ACKED",)),
    popped_at(popped_at(popped("POP, failed, the client wants it later").handled(success=False), 0.01, acked=0.05),
              0.04, AS_OF + 30)
    .expect(CG="RETRYING"),
    popped_at(popped_at(popped("POP, more time within the millisecond of the pop"), 0.02, 60, acked=0.02), 0.02, 90)
    .expect(knowledge="INCOMPLETE", CG="UNKNOWN", group_reasons=("GROUP_NOT_TRACED",)),
    popped_at(popped("POP, a new check point before the acknowledgement may be lost"), 0.02, 60, acked=30, ack_offset=9)
    .gap(0, 30, TIMER)
    .expect(knowledge="INCOMPLETE", CG="UNKNOWN", group_reasons=("GROUP_NOT_TRACED",)),
    popped_at(popped("POP, failed, its check point and a new one may be lost").handled(success=False), 0.01, 60,
              acked=0.05, ack_offset=9, check_point=False).gap(-5, 0.05, TIMER)
    .expect(knowledge="INCOMPLETE", CG="UNKNOWN", group_reasons=("NEXT_ATTEMPT_NOT_SEEN",)),
    popped_at(popped("POP, acknowledged before other records were lost"), 0.02, 60, acked=30).gap(0, 40, TIMER)
    .expect(knowledge="INCOMPLETE", CG="CONSUMED", group_reasons=("POP_ACKED",)),
    popped_at(popped("POP, acknowledged after other records were lost"), 1, 60, acked=30, ack_offset=9)
    .gap(-5, 0, TIMER)
    .expect(knowledge="INCOMPLETE", CG="CONSUMED", group_reasons=("POP_ACKED",)),
    popped_at(popped("POP, not acknowledged in time"), 0.02, 60)
    .expect(knowledge="INCOMPLETE", CG="UNKNOWN", group_reasons=("GROUP_NOT_TRACED",)),
    popped_at(again(popped_at(popped("POP, the copy was acknowledged"), 0.02, 10)), 13, 73, acked=13.1, times=1)
    .expect(knowledge="INCOMPLETE", CG="CONSUMED,CONSUMED_AFTER_RETRY", group_reasons=("POP_ACKED",)),
    on_retries(again(popped_at(popped("POP, acknowledged after the copy was made"), 0.02, 60, acked=13)), 0)
    .expect(knowledge="INCOMPLETE", CG="RETRYING"),
    popped_at(History("POP, the filter excludes it").pub().stored().scanned().group(CLIENT, expression="TagB"), 0.02,
              acked=0.05)
    .expect(CG="FILTERED"),
    popped_at(History("POP, the filter was never sampled").pub().stored().scanned().offset(7, -60).offset(8, 60)
              .offset(8), 0.02, acked=0.05)
    .expect(knowledge="INCOMPLETE", CG="UNKNOWN", group_reasons=("POP_ACKED",)),
    popped_at(popped("POP, popped a moment ago"), 570, 630)
    .expect(knowledge="INCOMPLETE", CG="IN_FLIGHT", group_reasons=("POP_NOT_ACKED",)),
    popped_at(popped("POP, popped a minute ago by an unknown client"), 540, 700)
    .expect(knowledge="INCOMPLETE", CG="UNKNOWN", group_reasons=("POP_NOT_ACKED",)),
    popped_at(popped("POP, in a handler").before(570, trace_client_id=CLIENT), 569.9, 700)
    .expect(CG="IN_FLIGHT"),
    popped_at(popped("POP, in a handler for too long").before(500, trace_client_id=CLIENT), 499.9, 700)
    .expect(CG="HUNG"),
    popped_at(History("POP, its client is gone").pub().stored().scanned().group()
              .before(500, trace_client_id=CLIENT), 499.9, 700)
    .expect(knowledge="INCOMPLETE", CG="NO_CONSUMER", group_reasons=("HANDLER_GONE",)),
    popped_at(popped("POP, records were lost").before(570, trace_client_id=CLIENT).offset(8, 580), 569.9, 700)
    .gap(571, 580, TIMER)
    .expect(knowledge="INCOMPLETE", CG="UNKNOWN", group_reasons=("END_NOT_TRACED",)),
    popped("POP, its records are not read").before(500, trace_client_id=CLIENT).offset(8, 520)
    .stored(499.9, "POP_CK", TIMER, 2, group_name=GROUP, real_topic="rmq_sys_REVIVE_LOG_c", retry_topic=TOPIC,
            origin_msg_id=offset_id(0), born_ms=at(499.9), due_ms=at(700), tags="ck")
    .expect(knowledge="INCOMPLETE", CG="UNKNOWN", group_reasons=("END_NOT_TRACED",)),
    *(popped_at(other(popped(f"POP, not acknowledged in time, and {what}")).offset(7, AS_OF - 0.5), 0.02, 60,
                acked=acked).expect(msg=2, CG="CONSUMED")
      .expect(knowledge="INCOMPLETE", CG="UNKNOWN", group_reasons=("POP_NOT_ACKED",))
      for what, acked in (("its offset is not past it", None), ("its offset was set back", 61))),
    popped_at(other(popped("POP, not acknowledged in time, and removed")).unread("EXPIRED", 7, 9), 0.02, 50)
    .expect(msg=2, CG="CONSUMED").expect(knowledge="INCOMPLETE", CG="UNKNOWN", group_reasons=("POP_NOT_ACKED",)),
    popped_at(History("POP, a group known by its pops alone").pub().stored().scanned(), 0.02, acked=0.05)
    .expect(knowledge="INCOMPLETE", CG="UNKNOWN", group_reasons=("POP_ACKED",)),
    popped_at(popped("POP, stored twice").stored(0.5, offset=8), 0.02, acked=0.05)
    .expect(message="DUPLICATE_SEND", knowledge="INCOMPLETE", CG="UNKNOWN", group_reasons=("GROUP_NOT_TRACED",)),
)

POP_HISTORIES = (
    *RECORDED_POPS,
    popped("POP, consumed").handled().expect(CG="CONSUMED"),
    again(popped("POP, failed and consumed again").handled(success=False)).handled(13, request="R2", times=1)
    .expect(CG="CONSUMED,CONSUMED_AFTER_RETRY"),
    again(popped("POP, the same with a newer broker").handled(success=False), topic=V2)
    .handled(13, request="R2", times=1).expect(CG="CONSUMED,CONSUMED_AFTER_RETRY"),
    on_retries(again(popped("POP, the copy waits").handled(success=False)), 0).expect(CG="RETRYING"),
    on_retries(again(popped("POP, the copy waits at a newer broker").handled(success=False), topic=V2), 0, V2)
    .expect(CG="RETRYING"),
    on_retries(again(popped("POP, the copy was popped untraced").handled(success=False)), 2)
    .expect(knowledge="INCOMPLETE", CG="UNKNOWN", group_reasons=("RETRY_PASSED_UNTRACED",)),
    on_retries(again(popped("POP, the copy was popped untraced at a newer broker").handled(success=False), topic=V2),
               2, V2)
    .expect(knowledge="INCOMPLETE", CG="UNKNOWN", group_reasons=("RETRY_PASSED_UNTRACED",)),
    on_retries(again(popped("POP, the copy was removed unread").handled(success=False)), 0)
    .unread("EXPIRED", 0, 2, topic=V1)
    .expect(CG="EXPIRED", group_reasons=("REMOVED_UNREAD",)),
    on_retries(again(popped("POP, the copy was lost at a newer broker").handled(success=False), topic=V2), 0, V2)
    .unread("TRUNCATED", 0, 2, topic=V2)
    .expect(CG="LOST", group_reasons=("TRUNCATED",)),
    on_retries(again(popped("POP, copies in another retry topic were removed").handled(success=False)), 0)
    .unread("EXPIRED", 0, 2, topic="%RETRY%CG").unread("EXPIRED", 0, 2, topic=V2)
    .expect(CG="RETRYING"),
    on_retries(again(popped("POP, done, the copy waits: not acknowledged, or the tail of a batch").handled()), 0)
    .expect(knowledge="INCOMPLETE", CG="UNKNOWN", group_reasons=("ACK_NOT_KNOWN",)),
    on_retries(again(popped("POP, done by our client, the copy waits").handled().result(0.03, "SUCCESS")), 0)
    .expect(CG="CONSUMED"),
    popped("POP, failed, its copy is not made yet").handled(success=False)
    .expect(knowledge="INCOMPLETE", CG="UNKNOWN", group_reasons=("NEXT_ATTEMPT_NOT_SEEN",)),
    popped("POP, handed over").before(500, trace_client_id=CLIENT).offset(8, 520)
    .expect(knowledge="INCOMPLETE", CG="UNKNOWN", group_reasons=("END_NOT_TRACED",)),
    again(popped("POP, the handler took longer than the pop's time"), 62).handled(0.02, 70)
    .handled(63, request="R2", times=1).expect(CG="CONSUMED,CONSUMED_SLOW,DUPLICATE_PROCESSING"),
    again(popped("POP, the tail of a listener batch"), 12).handled().handled(13, request="R2", times=1)
    .expect(CG="CONSUMED,CONSUMED_AFTER_RETRY"),
    popped("a retry of a group whose name ends with the topic").group(CLIENT, group="CG_orders")
    .handled().handled(group="CG_orders", success=False, request="R2")
    .stored(12, "RETRY", V1, 1, group_name="CG_orders", retry_topic=TOPIC, reconsume_times=1)
    .expect(CG="CONSUMED", CG_orders="RETRYING"),
    popped("POP, a broker's record of the copy alone").handled(success=False)
    .trace("Stored", 12, topic=V1, msg_id=unique_id(1), stored_kind="RETRY", store_ms=0, store_broker_name=BROKER,
           store_queue_id=0, store_queue_offset=1, physical_offset=9_000)
    .expect(knowledge="INCOMPLETE", CG="UNKNOWN", group_reasons=("NEXT_ATTEMPT_NOT_SEEN",)),
    popped("POP, check points are no messages").handled()
    .stored(0.01, "POP_LOG", "rmq_sys_wheel_timer", 1, own_unique_key="orders@0@7@CG@1700000000010@broker-a@ck",
            real_topic="rmq_sys_REVIVE_LOG_c", tags="ck")
    .expect(CG="CONSUMED"),
)
# fmt: on
