"""Labelled histories of clients with a namespace of 4.x: their trace leaves it out of topic and group."""

from __future__ import annotations

from typing import Any

from tests.trail.story import AS_OF, CLIENT, CONSUMER, History

NAMED_TOPIC, NAMED_GROUP, RETRIES = "shop%orders", "shop%CG", "%RETRY%shop%CG"


def known(history: History, offset: int = 8, group: str = NAMED_GROUP) -> History:
    """A group that subscribes to the topic with the namespace, from before the message on."""
    row = {"group_name": group, "topic": NAMED_TOPIC, "expression_type": "TAG", "expression": "*"}
    own = {"group_name": group, "status": "OK", "client_id": CLIENT, "client_host": CONSUMER}
    for time in (-60, AS_OF - 1):
        history.sampled("subscriptions", time, **row, consume_type="CONSUME_PASSIVELY", message_model="CLUSTERING")
        history.sampled("clients", time, **own, language="JAVA", version=479, ordered="false")
        history.offset(offset if time > 0 else min(offset, 7), time, group, NAMED_TOPIC)
    return history.offset(offset, 60, group, NAMED_TOPIC)


def sent(name: str, offset: int = 8) -> History:
    """A message that was sent and stored in a topic that is read."""
    return known(History(name).pub().stored(topic=NAMED_TOPIC).scanned(NAMED_TOPIC), offset)


def failed(name: str) -> History:
    """A message whose first attempt failed."""
    return sent(name).handled(success=False)


OF_RETRY: dict[str, Any] = {"group_name": NAMED_GROUP, "retry_topic": NAMED_TOPIC, "reconsume_times": 1}

# fmt: off
NAMESPACE_HISTORIES = (
    sent("namespace, consumed").handled().expect(of={NAMED_GROUP: "CONSUMED"}),
    sent("namespace, consumed by a client that traces full names").handled(group=NAMED_GROUP)
    .expect(of={NAMED_GROUP: "CONSUMED"}),
    sent("namespace, hung", 7).before(trace_client_id=CLIENT).expect(of={NAMED_GROUP: "HUNG"}),
    sent("namespace, the end has no record").before(trace_client_id=CLIENT)
    .expect(knowledge="INCOMPLETE", group_reasons=("END_NOT_TRACED",), of={NAMED_GROUP: "UNKNOWN"}),
    failed("namespace, retried").stored(10, "RETRY", RETRIES, 0, **OF_RETRY).offset(1, 20, NAMED_GROUP, RETRIES)
    .offset(1, group=NAMED_GROUP, topic=RETRIES).handled(10.1, request="R2", times=1)
    .expect(of={NAMED_GROUP: "CONSUMED,CONSUMED_AFTER_RETRY"}),
    failed("namespace, dead").stored(10, "DLQ", "%DLQ%shop%CG", 0, **OF_RETRY)
    .expect(of={NAMED_GROUP: "DEAD_LETTERED"}),
    known(sent("namespace, another group has no record").handled(), group="shop%CG2")
    .expect(knowledge="INCOMPLETE", group_reasons=("GROUP_NOT_TRACED",),
            of={NAMED_GROUP: "CONSUMED", "shop%CG2": "UNKNOWN"}),
    known(History("namespace, sent twice").pub(offset_msg_id="A").pub(1, offset_msg_id="B")
          .stored(topic=NAMED_TOPIC).stored(1, topic=NAMED_TOPIC, offset=8).scanned(NAMED_TOPIC), 9)
    .handled().handled(1.1, request="R2")
    .expect(message="DUPLICATE_SEND", group_reasons=("STORED_AGAIN", "!COPIES_NOT_TRACED"),
            of={NAMED_GROUP: "CONSUMED,DUPLICATE_PROCESSING"}),
    known(History("namespace, the topic is not read").pub().handled())
    .expect(knowledge="INCOMPLETE", group_reasons=("POSITION_UNKNOWN",), CG="CONSUMED", of={NAMED_GROUP: "UNKNOWN"}),
    known(History("another topic with this name in a namespace").pub().stored().scanned().group(CLIENT).handled())
    .expect(CG="CONSUMED"),
)
# fmt: on
