"""Timer messages of the client 5.3.3: due after seconds, after milliseconds, at a time; recalled by their handles."""

from __future__ import annotations

import time

import pytest
from interop.driver import Json
from interop.stage import Part, Stage, by_label, refusal

from mqtrail.client import SyncAdmin

pytestmark = [pytest.mark.interop, pytest.mark.timeout(300)]

PRECISION_MS = 1_000
LATE_MS = 4_000
OFTEN = ("5.3.3-json", "5.3.3-binary")


def timers(part: Part) -> Json:
    """Messages due at times given in each way, one recalled before it is due, and refused ones."""
    topic, group = part.named("Timers"), part.named("TimerGroup")
    part.make_topic(topic)
    part.consumer("c", group=group, topics={topic: "*"})
    part.producer("p", group=part.named("TimerProducer"))
    # A client may assign the queues up to 20 s after its start: without them no delivery counts as late.
    part.labelled("p", topic, {"first": {}})
    part.wait_handled(1, "c")
    now_ms = int(time.time() * 1000)
    wanted: dict[str, Json] = {
        "seconds": {"delaySec": 2, "keys": "key-seconds"},
        "milliseconds": {"delayMs": 2500},
        "at a time": {"deliverMs": now_ms + 3_000},
        "at a time gone by": {"deliverMs": now_ms - 60_000},
        "recalled": {"delaySec": 5},
        "after the recalled one": {"delaySec": 8},
    }
    sent = dict(zip(wanted, part.labelled("p", topic, wanted), strict=True))
    handles = {label: result.get("recallHandle") for label, result in sent.items()}
    recalled = part.call("recall", "p", topic=topic, handle=handles["recalled"])
    with SyncAdmin(part.server.namesrv_address) as admin:
        listed = {one.msg_id: one.is_recalled for broker in admin.delays()[0] for one in broker.messages}
    handled = part.wait_handled(len(wanted), "c")  # the first, and all but the recalled one
    handled_ms = {event["properties"]["label"]: event["beginMs"] for event in handled}
    waits = {"seconds": 2_000, "milliseconds": 2_500, "at a time": 3_000, "at a time gone by": 0}
    too_long = {"topic": topic, "body": "too long", "delaySec": 4 * 24 * 3600}
    return {
        "sent": {label: result["status"] for label, result in sent.items()},
        "has handle": {label: handle is not None for label, handle in handles.items()},
        "recalled": recalled["msgId"] == sent["recalled"]["msgId"],
        "listed": {label: listed.get(sent[label]["msgId"]) for label in ("recalled", "after the recalled one")},
        "handled": by_label(handled),
        "early": [
            label for label, ms in waits.items() if handled_ms[label] < sent[label]["beginMs"] + ms - PRECISION_MS
        ],
        "late": [label for label, ms in waits.items() if handled_ms[label] > sent[label]["endMs"] + ms + LATE_MS],
        "recall of what came": refusal(lambda: part.call("recall", "p", topic=topic, handle=handles["seconds"])),
        "recall of nothing": refusal(lambda: part.call("recall", "p", topic=topic, handle="bm90aGluZw==")),
        "recall without a topic": refusal(
            lambda: part.call("recall", "p", topic="NoSuchTopic", handle=handles["seconds"])
        ),
        "too long": [
            {name: result.get(name) for name in ("error", "code", "status")}
            for result in part.try_send("p", [too_long])
        ],
    }


@pytest.mark.parametrize("client", OFTEN)
def test_timers(stage: Stage, client: str) -> None:
    """Each is delivered once, when it is due; the recalled one never."""
    ours, apache = stage.play(timers, client)
    assert ours == apache
    assert "recalled" not in ours["handled"]
    assert ours["recalled"]
    assert ours["listed"] == {"recalled": True, "after the recalled one": False}
    assert ours["early"] == ours["late"] == []
