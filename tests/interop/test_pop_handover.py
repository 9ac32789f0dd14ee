"""A directory with popped messages moves between brokers: each redelivers the other's unacknowledged messages."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from interop.apache import ApacheBroker, ApacheNameServer
from interop.ours import OurServer
from interop.pops import Popper, ask
from interop.probe import wait_until
from interop.story import SERVER_PROPERTIES

from mqtrail.wire import CreateTopicHeader, RequestCode

pytestmark = [pytest.mark.interop, pytest.mark.timeout(300)]

TOPIC, GROUP = "PopHandover", "pop_handover"
SEGMENT_SIZE = 64 << 20
AGAIN_S = 90.0
HIDDEN_MS = 20_000


@contextmanager
def apache_on(store: Path, folder: Path) -> Iterator[str]:
    """Run Apache's broker on a directory; yields its address, and stops it cleanly."""
    namesrv = ApacheNameServer("5.3.3", folder / "namesrv").start()
    broker = ApacheBroker("5.3.3", folder / "broker", namesrv.address, store=store, properties=SERVER_PROPERTIES)
    try:
        broker.start()
        yield broker.address
    finally:
        broker.stop()
        namesrv.kill()


@contextmanager
def ours_on(folder: Path) -> Iterator[str]:
    """Run our server on its directory; yields its broker's address, and stops it cleanly."""
    server = OurServer(folder, segment_size=SEGMENT_SIZE).start()
    try:
        yield server.broker_address
    finally:
        server.stop()


def take(address: str, invisible_ms: int, acked: set[str]) -> list[str]:
    """Pop everything, acknowledge only these bodies; return all popped ones."""
    found = []
    popper = Popper(address, TOPIC, GROUP)
    for message, handle in popper.pop(invisible_ms):
        body = message.body.decode()
        if body in acked:
            assert popper.ack(message, handle) == 0
        found.append(body)
    return found


def take_until(address: str, wanted: set[str], acked: set[str] | None = None) -> list[str]:
    """Pop until all wanted bodies are there and acknowledge them (acked: only these); return the popped ones in
    order."""
    found: list[str] = []

    def all_here() -> bool:
        found.extend(take(address, HIDDEN_MS, wanted if acked is None else acked))
        return wanted <= set(found)

    wait_until(all_here, f"{wanted} once more", AGAIN_S, interval_s=0.5)
    return found


def test_there_and_back(tmp_path: Path) -> None:
    """Ours, Apache's, ours: a message acknowledged at one is not delivered by the other; all others are."""
    folder = tmp_path / "ours"
    store = OurServer(folder).store
    with ours_on(folder) as address:
        ask(address, RequestCode.UPDATE_AND_CREATE_TOPIC, CreateTopicHeader(TOPIC, 2, 2, 6).to_ext())
        popper = Popper(address, TOPIC, GROUP)
        popper.send("ours done", "ours open")
        assert take(address, HIDDEN_MS, {"ours done"}) == ["ours done", "ours open"]
        popper.send("order one", "order two", queue_id=1)
        first = popper.pop(1_000, order=True, queue_id=1)
        assert [message.body for message, _ in first] == [b"order one", b"order two"]
        assert popper.ack(*first[0]) == 0
    with apache_on(store, tmp_path / "apache") as address:
        assert take_until(address, {"ours open"}) == ["ours open"]
        popper = Popper(address, TOPIC, GROUP)
        [(message, _)] = popper.pop(60_000, order=True, queue_id=1)
        assert message.body == b"order two"
        popper.send("apache done", "apache open")
        # Apache's queues show a message a moment after its send is answered
        assert take_until(address, {"apache done", "apache open"}, acked={"apache done"}) == [
            "apache done",
            "apache open",
        ]
    with ours_on(folder) as address:
        assert take_until(address, {"apache open"}) == ["apache open"]
        popper = Popper(address, TOPIC, GROUP)
        assert popper.pop(1_000, order=True, queue_id=1) == []  # blocked for the minute that Apache's file sets
