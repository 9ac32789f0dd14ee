"""Request and reply through the broker, and a request that nobody answers."""

from __future__ import annotations

import pytest
from interop.driver import Json
from interop.stage import CLIENTS, Part, Stage, by_label, properties, refusal

pytestmark = [pytest.mark.interop, pytest.mark.timeout(300)]

TIMEOUT_MS = 60_000  # a client that missed a route looks for it after 30 s only


def replies(part: Part) -> Json:
    """Three requests that are answered, and one that is not in time."""
    callback = part.client.startswith("5")  # its other way does not wait for the reply
    topic = part.named("Requests")
    part.make_topic(topic)
    part.producer("replies", group=part.named("Replies"))
    part.consumer("c", group=part.named("Repliers"), topics={topic: "*"}, replier="replies")
    part.producer("asks", group=part.named("Asks"))
    answers = [
        part.call(
            "request",
            "asks",
            message={"topic": topic, "body": body, "properties": {"behave": "reply", "label": body}},
            timeoutMs=TIMEOUT_MS,
            callback=callback,
        )
        for body in ("one", "two", "drei €")
    ]
    silent = {"topic": topic, "body": "silent", "properties": {"label": "silent"}}
    handled = part.wait_handled(3, "c")
    return {
        "answers": [(answer["topic"], answer["body"], properties(answer["properties"])) for answer in answers],
        "handled": by_label(handled),
        "silent": refusal(lambda: part.call("request", "asks", message=silent, timeoutMs=1_000, callback=callback)),
    }


@pytest.mark.parametrize("client", CLIENTS)
def test_replies(stage: Stage, client: str) -> None:
    """Who asked gets the answer to its own question."""
    ours, apache = stage.play(replies, client)
    assert ours == apache
    assert [body for _, body, _ in ours["answers"]] == ["re: one", "re: two", "re: drei €"]
    assert "Timeout" in ours["silent"][0]
