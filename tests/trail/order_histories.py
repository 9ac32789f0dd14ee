"""Labelled histories of groups that consume in order: what counts as finished before an earlier message.

Copies are appended in the order of their rows, so a later row is a later message of the CommitLog.
"""

from __future__ import annotations

from typing import Any

from tests.trail.story import CLIENT, History

_OTHER_HOST: dict[str, Any] = {"trace_born_host": "10.0.0.3:6001"}


def two(
    name: str, ordered: str = "true", first: dict[str, Any] | None = None, second: dict[str, Any] | None = None
) -> History:
    """Messages 1 and 3, of one queue by default. first, second: other values of their copies."""
    history = History(name).scanned().group(CLIENT, offset=9).says(ordered)
    history.pub().stored(**(first or {})).pub(msg=3)
    return history.stored(**{"offset": 8, "msg": 3, **(second or {})})


def overtaken(name: str, ordered: str = "true", **values: dict[str, Any]) -> History:
    """Message 3 was finished at 0.13, message 1 at 0.33."""
    history = two(name, ordered, **values)
    return history.handled(0.12, msg=3, request="R2").handled(0.32)


_LATE = "CONSUMED,OUT_OF_ORDER"


def key(value: str, **values: Any) -> dict[str, Any]:
    """A copy with a sharding key."""
    return {"sharding_key": value, **values}


# fmt: off
ORDER_HISTORIES = (
    two("ordered, in order").handled().handled(0.12, msg=3, request="R2")
    .expect(CG="CONSUMED").expect(msg=3, CG="CONSUMED"),
    overtaken("out of order in a queue").expect(group_reasons=("OVERTAKEN_BY",), CG=_LATE)
    .expect(msg=3, group_reasons=("!OVERTAKEN_BY",), CG="CONSUMED"),
    overtaken("out of order, the group is concurrent", "false").expect(CG="CONSUMED").expect(msg=3, CG="CONSUMED"),
    overtaken("out of order, it is not known whether the group is ordered", "")
    .expect(CG="CONSUMED").expect(msg=3, CG="CONSUMED"),
    overtaken("out of order, an earlier client of the group was concurrent")
    .sampled("clients", 1, group_name="CG", status="OK", client_id="old", client_host="10.0.0.2:1", ordered="false")
    .expect(CG="CONSUMED").expect(msg=3, CG="CONSUMED"),
    overtaken("out of order of one sharding key", first=key("a"), second=key("a"))
    .expect(CG=_LATE).expect(msg=3, CG="CONSUMED"),
    overtaken("out of order, two sharding keys in a queue", first=key("a"), second=key("b"))
    .expect(CG="CONSUMED").expect(msg=3, CG="CONSUMED"),
    overtaken("out of order, one sharding key in two queues", first=key("a"), second=key("a", queue_id=1, offset=0))
    .offset(1).expect(CG=_LATE).expect(msg=3, CG="CONSUMED"),
    overtaken("out of order, two queues", second={"queue_id": 1, "offset": 0})
    .expect(CG="CONSUMED").expect(msg=3, CG="CONSUMED"),
    overtaken("out of order, two brokers", first=key("a"), second=key("a", broker_name="broker-b"))
    .expect(CG="CONSUMED").expect(msg=3, knowledge="INCOMPLETE", reasons=("GROUPS_NOT_KNOWN",), CG="CONSUMED"),
    two("out of order, across a retry in place").handled(success=False).handled(0.12, msg=3, request="R2")
    .handled(1.02, request="R3", times=1)
    .expect(CG="CONSUMED,CONSUMED_AFTER_RETRY,OUT_OF_ORDER").expect(msg=3, CG="CONSUMED"),
    two("a retry in place that holds the queue").handled(success=False).handled(1.02, request="R3", times=1)
    .handled(1.12, msg=3, request="R2")
    .expect(CG="CONSUMED,CONSUMED_AFTER_RETRY").expect(msg=3, CG="CONSUMED"),
    two("handled at once, the earlier one is finished first").handled(0.02, 0.5).handled(0.12, 0.5, msg=3, request="R2")
    .expect(CG="CONSUMED").expect(msg=3, CG="CONSUMED"),
    two("handled at once, the later one is finished first").handled(0.02, 0.5).handled(0.12, msg=3, request="R2")
    .expect(CG=_LATE).expect(msg=3, CG="CONSUMED"),
    two("finished in one millisecond").handled(0.02, 0.02).handled(0.03, msg=3, request="R2")
    .expect(CG="CONSUMED").expect(msg=3, CG="CONSUMED"),
    two("one call of a listener").handled(0.02).result(0.03, "SUCCESS").before(0.02, "R1", msg=3)
    .after(0.03, "R1", msg=3).result(0.025, "SUCCESS", msg=3, offset=8).expect(CG="CONSUMED")
    .expect(msg=3, CG="CONSUMED"),
    two("handled a second time after the later one").handled().handled(0.12, msg=3, request="R2")
    .handled(0.32, request="R3").expect(CG="CONSUMED,DUPLICATE_DELIVERY,DUPLICATE_PROCESSING")
    .expect(msg=3, CG="CONSUMED"),
    two("a slow handler, and a second client that handles both").handled(0.02, 2.0)
    .handled(0.5, request="R3").handled(0.6, msg=3, request="R2")
    .expect(CG="CONSUMED,CONSUMED_SLOW,DUPLICATE_DELIVERY,DUPLICATE_PROCESSING").expect(msg=3, CG="CONSUMED"),
    two("out of order by the clocks of two hosts").handled(0.12, msg=3, request="R2", **_OTHER_HOST).handled(0.32)
    .expect(CG="CONSUMED").expect(msg=3, CG="CONSUMED"),
    two("the clock was set back between the two").handled(60, stored=60.3)
    .handled(0.5, msg=3, request="R2", stored=60.6).expect(CG="CONSUMED").expect(msg=3, CG="CONSUMED"),
    two("the earlier one failed and is not finished").handled(0.02, success=False).handled(0.12, msg=3, request="R2")
    .expect(knowledge="INCOMPLETE", CG="UNKNOWN", group_reasons=("NEXT_ATTEMPT_NOT_SEEN",))
    .expect(msg=3, CG="CONSUMED"),
    overtaken("out of order, and sent again by an operator").stored(
        5, "RESENT", offset=9, origin_msg_id="0A", physical_offset=9000).offset(10)
    .handled(5.1, request="R4").expect(CG="CONSUMED,RESENT").expect(msg=3, CG="CONSUMED"),
)
# fmt: on
