"""Request and reply through the broker, and a request without a reply."""

from __future__ import annotations

from functools import partial

import pytest
from interop.driver import Json
from interop.stage import CLIENTS, Part, Stage, by_label, labels, properties, refusal, wait_for

pytestmark = [pytest.mark.interop, pytest.mark.timeout(300)]

ASKED = ("one", "two", "drei €")
TIMEOUT_MS, KNOWN_MS = 30_000, 4_000


def replies(part: Part) -> Json:
    """Three requests with a reply, and one without a reply in time."""
    callback = part.client.startswith("5")  # the other API does not wait for the reply
    topic = part.named("Requests")
    part.make_topic(topic)
    part.producer("replies", group=part.named("Replies"))
    part.consumer("c", group=part.named("Repliers"), topics={topic: "*"}, replier="replies")
    part.producer("asks", group=part.named("Asks"))

    def ask(body: str, timeout_ms: int) -> Json:
        message = {"topic": topic, "body": body, "properties": {"behave": "reply", "label": body}}
        return part.call("request", "asks", message=message, timeoutMs=timeout_ms, callback=callback)

    # A broker can only reply to clients that it knows by a heartbeat, and a client may send its first one late.
    wait_for(lambda: not refusal(partial(ask, "known", KNOWN_MS))[0], f"a first reply on {part.kind}", interval_s=0.0)
    answers = [ask(body, TIMEOUT_MS) for body in ASKED]
    silent = {"topic": topic, "body": "silent", "properties": {"label": "silent"}}
    wait_for(lambda: set(ASKED) <= set(labels(part.handled("c"))), f"requests handled on {part.kind}")
    handled = [event for event in part.handled("c") if event["body"] in ASKED]
    return {
        "answers": [(answer["topic"], answer["body"], properties(answer["properties"])) for answer in answers],
        "handled": by_label(handled),
        "silent": refusal(lambda: part.call("request", "asks", message=silent, timeoutMs=1_000, callback=callback)),
    }


@pytest.mark.parametrize("client", CLIENTS)
def test_replies(stage: Stage, client: str) -> None:
    """Each requester gets the reply to its own request."""
    ours, apache = stage.play(replies, client)
    assert ours == apache
    assert [body for _, body, _ in ours["answers"]] == [f"re: {body}" for body in ASKED]
    assert "Timeout" in ours["silent"][0]
