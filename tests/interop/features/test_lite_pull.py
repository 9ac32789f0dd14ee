"""The lite pull consumer of the official clients: assigned and subscribed queues, seeking, committing."""

from __future__ import annotations

import pytest
from interop.driver import Json
from interop.stage import CLIENTS, Part, Stage, by_label, labels, wait_for

pytestmark = [pytest.mark.interop, pytest.mark.timeout(300)]

COUNT, QUEUES = 12, 4


def assigned(part: Part) -> Json:
    """Assign all queues; poll, commit, seek to the begin, to an offset and to the end, pause and resume."""
    topic, group = part.named("LiteAssigned"), part.named("LiteAssignedGroup")
    part.make_topic(topic, QUEUES)
    part.producer("p", group=part.named("LiteProducer"))
    part.labelled("p", topic, {f"m{i:02}": {"keys": f"key-{i}"} for i in range(COUNT)})
    part.call("lite", "c", group=group)
    queues = part.call("liteAssign", "c", topic=topic)["queues"]
    first = _poll(part, "c", COUNT)
    fresh = _committed(part, topic)
    part.call("liteCommit", "c")
    wait_for(lambda: sum(_committed(part, topic)) == COUNT, f"what was committed on {part.kind}")
    part.call("liteSeek", "c", topic=topic, to="begin")
    again = _poll(part, "c", COUNT)
    part.call("liteSeek", "c", topic=topic, queueId=1, to="1")
    from_one = _poll(part, "c", COUNT // QUEUES - 1)
    part.call("litePause", "c", topic=topic, queueId=0, paused=True)
    part.labelled("p", topic, {f"paused-{i}": {} for i in range(QUEUES)})
    # a pull that is already held delivers messages of a paused queue: only those of the others are certain
    others = _poll(part, "c", QUEUES - 1)
    part.call("litePause", "c", topic=topic, queueId=0, paused=False)
    others += _poll(part, "c", QUEUES - len(others))
    part.call("liteSeek", "c", topic=topic, to="end")
    part.labelled("p", topic, {f"after-{i}": {} for i in range(QUEUES)})
    offsets = part.call("liteOffsets", "c", topic=topic, timestampMs=0)["queues"]
    return {
        "queues": sorted(queue["queueId"] for queue in queues),
        "first": by_label(first),
        "fresh": fresh,
        "again": sorted(labels(again)),
        "from one": [(message["queueId"], message["queueOffset"]) for message in from_one],
        "paused and resumed": sorted(message["queueId"] for message in others),
        "at the end": sorted(labels(_poll(part, "c", QUEUES))),
        "at time": [queue["atTime"] for queue in offsets],
    }


def _committed(part: Part, topic: str) -> list[int]:
    """The group's offsets, queue by queue; -1: none."""
    queues = part.call("liteOffsets", "c", topic=topic, timestampMs=0)["queues"]
    return [queue["committed"] for queue in sorted(queues, key=lambda queue: queue["queueId"])]


def _poll(part: Part, name: str, count: int) -> list[Json]:
    """Poll until this number of messages has arrived."""
    found: list[Json] = []

    def enough() -> bool:
        found.extend(part.call("litePoll", name, timeoutMs=500)["messages"])
        return len(found) >= count

    wait_for(enough, f"{count} messages polled on {part.kind}")
    return found


@pytest.mark.parametrize("client", CLIENTS)
def test_assigned(stage: Stage, client: str) -> None:
    """Every message once for each seek; offsets as committed."""
    ours, apache = stage.play(assigned, client)
    assert ours == apache
    everything = [f"m{i:02}" for i in range(COUNT)]
    assert sorted(ours["first"]) == ours["again"] == everything
    assert ours["from one"] == [(1, 1), (1, 2)]
    assert ours["paused and resumed"] == list(range(QUEUES))
    assert ours["at the end"] == [f"after-{i}" for i in range(QUEUES)]


def subscribed(part: Part) -> Json:
    """Two members share the queues and commit automatically; a third continues where they stopped."""
    topic, group = part.named("LiteShared"), part.named("LiteSharedGroup")
    part.make_topic(topic, QUEUES)
    part.producer("p", group=part.named("LiteSharedProducer"))
    for name in ("one", "two"):
        part.call("lite", name, group=group, topics={topic: "Wanted"}, autoCommit=True)
    counts = {"one": QUEUES // 2, "two": QUEUES // 2}
    wait_for(lambda: {name: _queues(part, name) for name in counts} == counts, f"shared queues on {part.kind}")
    tags = {f"m{i:02}": {"tags": "Wanted" if i < COUNT else "Unwanted"} for i in range(COUNT + 4)}
    part.labelled("p", topic, tags)
    shares = {name: _poll(part, name, COUNT // 2) for name in counts}
    # poll until the client has committed the delivered messages
    wait_for(lambda: _all_committed(part, topic, counts), f"commits on {part.kind}")
    for name in counts:
        part.close(name)
    part.call("lite", "three", group=group, topics={topic: "Wanted"}, autoCommit=True)
    part.labelled("p", topic, {f"later-{i}": {"tags": "Wanted"} for i in range(QUEUES)})
    return {
        "shares": {name: len(messages) for name, messages in shares.items()},
        "all": sorted(labels([*shares["one"], *shares["two"]])),
        "third": sorted(labels(_poll(part, "three", QUEUES))),
    }


def _queues(part: Part, name: str) -> int:
    return len(part.call("liteAssignment", name)["queues"])


def _all_committed(part: Part, topic: str, names: dict[str, int]) -> bool:
    """Let each member poll once more; return whether the group's offsets are past all expected messages."""
    assert not [message for name in names for message in part.call("litePoll", name, timeoutMs=100)["messages"]]
    queues = part.call("liteOffsets", "one", topic=topic, timestampMs=0)["queues"]
    return sum(int(queue["committed"]) for queue in queues) >= COUNT


@pytest.mark.parametrize("client", CLIENTS)
def test_subscribed(stage: Stage, client: str) -> None:
    """Each message is delivered to one member, and none again to the third."""
    ours, apache = stage.play(subscribed, client)
    assert ours == apache
    assert ours["shares"] == {"one": COUNT // 2, "two": COUNT // 2}
    assert ours["all"] == [f"m{i:02}" for i in range(COUNT)]
    assert ours["third"] == [f"later-{i}" for i in range(QUEUES)]
