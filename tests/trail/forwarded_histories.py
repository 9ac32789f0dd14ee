"""Labelled histories of ids that are stored several times: in two topics, on two brokers, or again later. The groups of
each copy are judged, each by the copy that it reads."""

from __future__ import annotations

from typing import Any

from tests.trail.story import AS_OF, CLIENT, GROUP, History, at

OTHER = "10.0.0.4@1#1"
OTHER_TOPIC = "archive"


def reader(
    history: History,
    offset: int = 1,
    group: str = "CG2",
    known: float = -60,
    first: int = 0,
    model: str = "CLUSTERING",
    expression: str = "*",
) -> History:
    """A group with one client that subscribes to the other topic and committed there since it came."""
    row = {"group_name": group, "topic": OTHER_TOPIC, "expression_type": "TAG", "expression": expression}
    own = {"group_name": group, "status": "OK", "client_id": OTHER, "client_host": "10.0.0.4:1"}
    for time in (known, AS_OF - 1):
        history.sampled("subscriptions", time, **row, consume_type="CONSUME_PASSIVELY", message_model=model)
        history.sampled("clients", time, **own, language="JAVA", version=479, ordered="false")
    if model == "CLUSTERING":
        for time in (known, 60, AS_OF - 1):
            history.offset(offset if time > known else first, time, group, OTHER_TOPIC)
    return history


def forwarded(name: str, time: float = 5.0, **values: Any) -> History:
    """A message that a group consumed, and that is stored in another topic under its id."""
    history = History(name).pub().stored().scanned().group(CLIENT).handled()
    return history.stored(time, topic=OTHER_TOPIC, offset=0, **values)


def traced(history: History, group: str = "CG2", time: float = 30.0) -> History:
    """Another message of the other topic, which the group consumed."""
    history.pub(time, msg=2, topic=OTHER_TOPIC).stored(time + 0.004, topic=OTHER_TOPIC, offset=1, msg=2)
    history.offset(2, AS_OF - 0.5, group, OTHER_TOPIC)
    history.handled(time + 0.1, msg=2, request="R8", group=group, trace_client_id=OTHER)
    return history.expect(msg=2, of={group: "CONSUMED"})


def begun(history: History) -> History:
    """The group of the other topic got the message there, and its handler did not end."""
    return history.before(6, "R9", group="CG2", trace_client_id=OTHER)


# fmt: off
FORWARDED_HISTORIES = (
    traced(reader(forwarded("forwarded, the other topic's group has no record"), 2))
    .expect(knowledge="INCOMPLETE", reasons=("STORED_IN",), CG="CONSUMED", CG2="UNKNOWN",
            group_reasons=("PASSED_UNTRACED",)),
    reader(forwarded("forwarded, the other topic's group never traced"))
    .expect(knowledge="INCOMPLETE", CG="CONSUMED", CG2="UNKNOWN", group_reasons=("GROUP_NOT_TRACED",)),
    reader(forwarded("forwarded, waiting in the other topic"), 0)
    .expect(knowledge="INCOMPLETE", CG="CONSUMED", CG2="WAITING", group_reasons=("GROUP_NOT_TRACED",)),
    traced(reader(forwarded("forwarded, consumed in both topics"), 2)).handled(6, group="CG2", request="R9")
    .expect(CG="CONSUMED", CG2="CONSUMED"),
    begun(reader(forwarded("forwarded, the other topic's group has no end and is past it")))
    .expect(knowledge="INCOMPLETE", CG="CONSUMED", CG2="UNKNOWN", group_reasons=("END_NOT_TRACED",)),
    begun(reader(forwarded("forwarded, hung in the other topic"), 0)).expect(CG="CONSUMED", CG2="HUNG"),
    traced(reader(forwarded("forwarded, expired in the other topic"), 0)).offset(0, AS_OF - 0.4, "CG2", OTHER_TOPIC)
    .unread("EXPIRED", 0, 1, group="CG2", topic=OTHER_TOPIC).expect(CG="CONSUMED", CG2="EXPIRED"),
    traced(reader(forwarded("forwarded, a range of the other topic that is at the same offset in this one"), 2))
    .unread("EXPIRED", 7, 9, group="CG2")
    .expect(knowledge="INCOMPLETE", CG="CONSUMED", CG2="UNKNOWN", group_reasons=("PASSED_UNTRACED",)),
    reader(forwarded("forwarded, excluded by the filter of the other topic"), expression="TagB")
    .expect(CG="CONSUMED", CG2="FILTERED"),
    reader(forwarded("forwarded with another tag, which its filter accepts", tags="TagB"), expression="TagB")
    .expect(knowledge="INCOMPLETE", CG="CONSUMED", CG2="UNKNOWN", group_reasons=("GROUP_NOT_TRACED",)),
    History("forwarded with a greater tag, which the filter of its own topic excludes").pub().stored().scanned()
    .group(CLIENT, expression="TagA").stored(5, topic=OTHER_TOPIC, offset=0, tags="TagB")
    .expect(knowledge="INCOMPLETE", CG="UNKNOWN", group_reasons=("GROUP_NOT_TRACED",)),
    reader(forwarded("forwarded, a group reads both topics and has one record"), group=GROUP)
    .expect(knowledge="INCOMPLETE", CG="CONSUMED", group_reasons=("COPIES_NOT_TRACED",)),
    reader(forwarded("forwarded, a group reads both topics"), group=GROUP).handled(6, request="R9")
    .expect(CG="CONSUMED,DUPLICATE_PROCESSING", group_reasons=("STORED_AGAIN",)),
    reader(forwarded("forwarded, a group came to the other topic before the copy"), group=GROUP, known=3)
    .expect(knowledge="INCOMPLETE", CG="CONSUMED", group_reasons=("COPIES_NOT_TRACED",)),
    traced(reader(forwarded("forwarded before a group of the other topic came"), 2, known=25, first=1))
    .expect(CG="CONSUMED"),
    reader(forwarded("forwarded, a client of a broadcasting group has no record"), model="BROADCASTING")
    .expect(knowledge="INCOMPLETE", reasons=("BROADCAST_NOT_TRACED",), CG="CONSUMED"),
    reader(forwarded("forwarded to a broadcasting group"), model="BROADCASTING")
    .handled(6, group="CG2", request="R9", trace_client_id=OTHER).expect(CG="CONSUMED", CG2="CONSUMED"),
    forwarded("forwarded in a gap of the samples").unsampled(4, 30)
    .expect(knowledge="INCOMPLETE", reasons=("GROUPS_NOT_KNOWN",), CG="CONSUMED"),
    forwarded("forwarded before and after a gap of the samples", 50).unsampled(4, 30).expect(CG="CONSUMED"),
    forwarded("forwarded since the last sample", AS_OF - 0.5)
    .expect(knowledge="INCOMPLETE", reasons=("GROUPS_NOT_KNOWN",), CG="CONSUMED"),
    forwarded("forwarded to another broker, whose groups were not sampled", 50, broker_name="broker-b")
    .unsampled(40, 60, broker="broker-b").expect(knowledge="INCOMPLETE", reasons=("GROUPS_NOT_KNOWN",), CG="CONSUMED"),
    reader(History("sent to two topics that are not read").pub(offset_msg_id="A")
           .pub(1, topic=OTHER_TOPIC, offset_msg_id="B").group(CLIENT).handled(), group="CG2")
    .expect(knowledge="INCOMPLETE", CG="CONSUMED", CG2="UNKNOWN"),
    History("stored twice, a group came between and has no record").pub(offset_msg_id="A").pub(100, offset_msg_id="B")
    .stored(0.004).stored(100, offset=20, born_ms=at(100)).scanned().group(CLIENT, offset=21).handled()
    .handled(100.1, request="R2").group(OTHER, group="CG2", known=50, offset=None).offset(10, 50, "CG2")
    .offset(21, AS_OF - 1, "CG2")
    .expect(message="DUPLICATE_SEND", knowledge="INCOMPLETE", CG="CONSUMED,DUPLICATE_PROCESSING", CG2="UNKNOWN",
            group_reasons=("GROUP_SEEN_LATER", "STORED_AGAIN")),
)
# fmt: on
