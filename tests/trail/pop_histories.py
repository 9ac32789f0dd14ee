"""Labelled histories of groups that pop: copies in POP's retry topics, offsets that move at the pop, check points."""

from __future__ import annotations

from typing import Any

from tests.trail.story import BROKER, CLIENT, GROUP, TOPIC, History, unique_id

V1, V2 = f"%RETRY%{GROUP}_{TOPIC}", f"%RETRY%{GROUP}+{TOPIC}"


def popped(name: str) -> History:
    """A stored message that a group has popped: its offset is past it."""
    return History(name).pub().stored().scanned().group(CLIENT)


def again(history: History, time: float = 12, times: int = 1, topic: str = V1) -> History:
    """A copy that the broker made after the time of a pop was up."""
    name = topic.removeprefix("%RETRY%")
    row: dict[str, Any] = {"group_name": name, "reconsume_times": times}
    return history.stored(time, "RETRY_POP", topic, times, **row)


def on_retries(history: History, offset: int, topic: str = V1) -> History:
    """The group's offset in POP's retry topic, since long before the judgement."""
    return history.offset(0, -60, topic=topic).offset(offset, 300, topic=topic).offset(offset, topic=topic)


# fmt: off
POP_HISTORIES = (
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
