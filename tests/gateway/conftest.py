"""A broker on tables with its HTTP door, and requests to it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from mqtrail.broker import BrokerConfig
from mqtrail.testing import Embedded, embedded


class Door:
    """Requests to a door; each must succeed."""

    def __init__(self, running: Embedded) -> None:
        self.running = running
        self.http = httpx.Client(base_url=running.http_url, timeout=60)

    def call(self, path: str, body: Any, **headers: str) -> Any:
        answer = self.http.post(path, json=body, headers=headers)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def publish(self, topic: str, body: Any, **headers: str) -> list[dict[str, Any]]:
        messages: list[dict[str, Any]] = self.call(f"/v1/topics/{topic}/messages", body, **headers)["messages"]
        return messages

    def receive(self, group: str, topic: str, **wanted: Any) -> list[dict[str, Any]]:
        asked = {"topic": topic, "max": 32, **wanted}
        messages: list[dict[str, Any]] = self.call(f"/v1/groups/{group}/receive", asked)["messages"]
        return messages

    def settle(self, group: str, act: str, receipts: list[str], **further: Any) -> list[dict[str, Any]]:
        asked = {"receipts": receipts, **further}
        results: list[dict[str, Any]] = self.call(f"/v1/groups/{group}/{act}", asked)["results"]
        return results

    def refused(self, method: str, path: str, **request: Any) -> tuple[int, str]:
        """Return status and detail of a problem."""
        answer = self.http.request(method, path, **request)
        assert answer.headers["content-type"] == "application/problem+json", answer.text
        problem = answer.json()
        assert problem["status"] == answer.status_code
        return answer.status_code, problem["detail"]


@pytest.fixture(scope="module")
def door(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Door]:
    """A door of a broker on SQLite; topics are created by sends."""
    folder: Path = tmp_path_factory.mktemp("door")
    config = BrokerConfig(message_size_max=100_000)
    with embedded(folder / "data", broker=config, store_url=f"sqlite:///{folder}/m.db", http=True) as running:
        one = Door(running)
        with one.http:
            assert one.http.put("/v1/topics/there", json={"queues": 1}).status_code == 200
            yield one
