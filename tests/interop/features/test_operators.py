"""mqadmin on online consumers: running info, delivery of one message, reset of offsets."""

from __future__ import annotations

import re
from functools import partial

import pytest
from interop.driver import Json
from interop.stage import CLIENTS, Part, Stage, by_label, labels, wait_for

pytestmark = [pytest.mark.interop, pytest.mark.timeout(300)]

SEVERAL = 8
DIRECTLY = re.compile(
    r"ConsumeMessageDirectlyResult \[order=(\w+), autoCommit=(\w+), consumeResult=(\w+), remark=(.*?),"
)


def inspected(part: Part) -> Json:
    """Running info, stacks, and one message delivered to an online consumer that succeeds, fails, throws."""
    topic, group = part.named("Looked"), part.named("LookedGroup")
    part.make_topic(topic)
    part.producer("p", group=part.named("LookedProducer"))
    online = part.consumer("c", group=group, topics={topic: "*"})["clientId"]
    behaviours = {"good": "ok", "fails": "fail:99", "throws": "exception:99"}
    messages = {label: {"properties": {f"behave-direct-{group}": what}} for label, what in behaviours.items()}
    sent = dict(zip(messages, part.labelled("p", topic, messages), strict=True))
    part.wait_handled(len(messages), "c")
    printed = {
        label: part.mq("queryMsgById", "-i", result["offsetMsgId"], "-t", topic, "-g", group, "-d", online)
        for label, result in sent.items()
    }
    unknown = part.mq("queryMsgById", "-i", sent["good"]["offsetMsgId"], "-t", topic, "-g", group, "-d", "no@body")
    status = part.mq("consumerStatus", "-g", group, "-i", online, "-s")
    overview = part.mq("consumerStatus", "-g", group)
    return {
        "directly": {label: _results(output) for label, output in printed.items()},
        "attempts": {label: len(attempts) for label, attempts in by_label(part.handled("c")).items()},
        "nobody": _code(unknown),
        "status": _headings(status),
        "subscribed": re.search(rf"{topic}\s+\S", status) is not None,
        "stacks": "ConsumeMessageThread" in status,
        "overview": [line.split()[-2] for line in overview.splitlines() if online in line],
        "consuming": "The consumer is offline" in status,
    }


def _results(output: str) -> list[tuple[str, ...]]:
    return [match.groups() for match in DIRECTLY.finditer(output)]


def _code(output: str) -> list[str]:
    return re.findall(r"CODE: (\d+)", output)


def _headings(output: str) -> list[str]:
    return [line for line in output.splitlines() if line.startswith("#")]


@pytest.mark.parametrize("client", CLIENTS)
def test_looked_into(stage: Stage, client: str) -> None:
    """The online client answers through the broker: its properties, queues, stacks, and its result for a message."""
    ours, apache = stage.play(inspected, client)
    assert ours == apache
    assert ours["subscribed"]
    assert ours["stacks"]


def set_back(part: Part) -> Json:
    """Offsets set to the beginning by time while the consumer lives: by the broker (5.x), through the client (4.9)."""
    topic = part.named("SetBack")
    part.make_topic(topic)
    part.producer("p", group=part.named("SetBackProducer"))
    part.labelled("p", topic, {f"m{i}": {} for i in range(SEVERAL)})
    reported = {}
    for way, on in (("Broker", "true"), ("Client", "false")):
        group, name = part.named(f"SetBackBy{way}"), f"c{way}"
        part.set_broker("useServerSideResetOffset", on)
        try:
            part.consumer(name, group=group, topics={topic: "*"})
            part.wait_handled(SEVERAL, name)
            wait_for(partial(part.has_offsets, topic, group), f"offsets of {group} on {part.kind}", 120, 0.5)
            output = part.mq("resetOffsetByTime", "-g", group, "-t", topic, "-s", "1000")
            part.wait_handled(2 * SEVERAL, name)
        finally:
            part.set_broker("useServerSideResetOffset", "true")
        reported[way] = {"printed": _reset_rows(output), "handled": sorted(labels(part.handled(name)))}
    return reported


def _reset_rows(output: str) -> list[list[str]]:
    """The table of reset offsets, without the heading."""
    return sorted(line.split() for line in output.splitlines() if re.match(r"^\S+\s+\d+\s+\d+\s*$", line))


@pytest.mark.parametrize("client", CLIENTS)
def test_set_back(stage: Stage, client: str) -> None:
    """An online consumer starts again from the beginning, once."""
    ours, apache = stage.play(set_back, client)
    assert ours == apache
    for reported in ours.values():
        assert reported["handled"] == sorted(2 * [f"m{i}" for i in range(SEVERAL)])
        assert len(reported["printed"]) == 4
