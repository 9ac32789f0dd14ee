"""The official client survives kill -9 of our broker: acknowledged messages are kept, and it continues by itself."""

from __future__ import annotations

from pathlib import Path

import pytest
from interop.driver import JavaClient
from interop.ours import OurServer
from interop.probe import request, wait_until

pytestmark = [pytest.mark.interop, pytest.mark.timeout(600)]

TOPIC, COUNT, KILLED_AFTER = "RestartTopic", 6000, 800
GET_MAX_OFFSET = 30


@pytest.mark.parametrize("sync_flush", [False, True], ids=["async-flush", "sync-flush"])
def test_kill_while_the_official_client_sends(sync_flush: bool, tmp_path: Path) -> None:
    """After kill -9 during sends every acknowledged message is delivered, and the client continues without help."""
    with (
        OurServer(tmp_path / "ours", broker={"sync_flush": sync_flush}) as server,
        JavaClient("5.3.3", tmp_path / "java", server.namesrv_address) as java,
    ):
        java.producer("p", group="RestartProducer", timeoutMs=3000)
        java.send("p", [{"topic": TOPIC, "body": "first"}])
        java.consumer("c", group="RestartGroup", topics={TOPIC: "*"})
        sending = java.begin(
            "send", name="p", mode="sync", messages=[{"topic": TOPIC, "body": f"{n}"} for n in range(COUNT)]
        )
        wait_until(lambda: stored(server.broker_address) > KILLED_AFTER, "the first sends", 120, 0.02)
        server.kill()
        server.start()
        results = java.end(sending, timeout_s=300)["results"]
        acknowledged = {f"{n}" for n, result in enumerate(results) if result.get("status") == "SEND_OK"}
        assert KILLED_AFTER < len(acknowledged) <= COUNT
        assert results[-1].get("status") == "SEND_OK", "the client did not find the broker again"

        def consumed(events: list[dict[str, object]]) -> bool:
            return acknowledged <= {str(event["body"]) for event in events if event["event"] == "ended"}

        java.wait(consumed, "every acknowledged message", 120)


def stored(broker_address: str) -> int:
    """Messages in the topic's queues."""
    replies = [request(broker_address, GET_MAX_OFFSET, {"topic": TOPIC, "queueId": f"{n}"})[0] for n in range(4)]
    return sum(int(reply["extFields"]["offset"]) for reply in replies)
