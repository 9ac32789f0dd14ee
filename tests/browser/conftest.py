"""A browser, consoles over a lake and over a live broker, and what every page must keep to."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import axe_playwright_python
import pytest
from playwright.sync_api import Browser, Page, sync_playwright

from mqtrail.broker import BrokerConfig
from mqtrail.client import ConsumeFromWhere, ConsumerConfig, SyncConsumer, SyncProducer
from mqtrail.testing import Embedded, embedded
from mqtrail.wire import Message
from tests.answers.lakes import id_of, make_lake, rows_of
from tests.console.serving import console

ROOT = Path(__file__).parents[2]
SHOTS = ROOT / ".build" / "browser"
IN_DOCS = ROOT / "docs" / "pictures"
PICTURES = {
    *("home-light", "search-light", "message-light", "dead-letters-light", "latency-light"),
    *("incidents", "group-live", "change-plan", "replication", "alerts", "pmq-group"),
}
"""Pages whose pictures the docs show. `make pictures` takes them."""
PICTURE_QUALITY = 60
AXE = (Path(axe_playwright_python.__file__).parent / "axe.min.js").read_text("utf-8")
WAIT_MS = 30_000
MARKUP = "<img/src=x/onerror=alert(1)>"
REORDERED = "\u202egnp.exe"
BODY = b'{"name": "<script>alert(1)</script>", "items": [1, 2]}'


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """The system's Chromium. scripts/chromium.sh installs it."""
    found = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    assert found is not None, "found no chromium: run scripts/chromium.sh"
    with sync_playwright() as playwright:
        made = playwright.chromium.launch(executable_path=found, args=["--no-sandbox"])  # root has no sandbox
        yield made
        made.close()


@pytest.fixture(scope="session")
def of_lake() -> Iterator[str]:
    """A console over a lake of histories. The keys and the tag of one message are hostile.

    Pictures of the docs show its path, so it has a short one.
    """
    rows = rows_of()
    for relation in rows.values():
        for row in relation:
            if row.get("keys") and row["keys"].split()[0] == "order-1":
                row["keys"] = f"{MARKUP} {REORDERED} shared"
    with tempfile.TemporaryDirectory(prefix="lake-") as folder:
        make_lake(Path(folder) / "shop", rows, gaps=True, rejects=2)
        with console(Path(folder) / "shop", data=Path(folder) / "data") as url:
            yield url


@dataclass(frozen=True)
class Live:
    """A console over a live broker with one message, which was consumed, and 40 that wait."""

    url: str
    broker: Embedded
    msg_id: str


@pytest.fixture
def live() -> Iterator[Live]:
    with embedded(broker=BrokerConfig(trace_topic_enable=True)) as broker:
        namesrv = broker.namesrv_address
        with SyncProducer("shop", namesrv, trace=True) as producer:
            msg_id = producer.send(Message("orders", BODY, tags="<b>", keys=[MARKUP])).msg_id
            config = ConsumerConfig(consume_from=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET)
            with SyncConsumer("billing", namesrv, {"orders": "*"}, trace=True, config=config) as consumer:
                delivery = consumer.receive(timeout_ms=WAIT_MS)
                assert delivery is not None
                with delivery.process():
                    pass
            for number in range(40):
                producer.send(Message("orders", b"waits", keys=[f"waits-{number}"]))
        with console(namesrv=namesrv) as url:
            yield Live(url, broker, msg_id)


@dataclass
class Visit:
    """A page in a tab of its own, and what it must not do."""

    page: Page
    url: str
    wrong: list[str] = field(default_factory=list)

    def open(self, path: str) -> None:
        """Open a page of the console and wait until its parts are there."""
        self.page.goto(self.url + path)
        self.loaded()

    def loaded(self) -> None:
        """Wait until no part is loading. A page that is being left has no `main` for a moment."""
        self.page.wait_for_selector("main h1")
        self.page.wait_for_function(
            "!/Loading …|加载中 …/.test(document.querySelector('main')?.innerText ?? 'Loading …')", timeout=WAIT_MS
        )

    def text(self) -> str:
        """Return the visible text of the page."""
        return self.page.inner_text("main")

    def wait_for(self, words: str) -> None:
        """Wait until the page has these words."""
        self.page.wait_for_function("words => document.body?.innerText.includes(words)", arg=words, timeout=WAIT_MS)

    def shot(self, name: str) -> None:
        """Keep a picture of the page."""
        SHOTS.mkdir(parents=True, exist_ok=True)
        self.page.screenshot(path=SHOTS / f"{name}.png", full_page=True)
        if name in PICTURES and os.environ.get("PICTURES"):
            IN_DOCS.mkdir(exist_ok=True)
            self.page.screenshot(path=IN_DOCS / f"{name}.jpg", type="jpeg", quality=PICTURE_QUALITY)

    def violations(self) -> list[str]:
        """Return what axe finds against WCAG 2.2 AA."""
        self.page.evaluate(AXE)
        tags = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa"]
        found: dict[str, Any] = self.page.evaluate("tags => axe.run({runOnly: tags})", tags)
        return [f"{one['id']}: {node['html'][:200]}" for one in found["violations"] for node in one["nodes"]]

    def _request(self, url: str) -> None:
        asked = urlsplit(url)
        if asked.scheme in ("http", "https", "ws", "wss") and asked.netloc != urlsplit(self.url).netloc:
            self.wrong.append(f"asked another host: {url}")


@pytest.fixture
def visit(browser: Browser) -> Iterator[Callable[..., Visit]]:
    """Return a function that opens a tab; at the end no tab may have asked another host, failed, or run a message."""
    made: list[Visit] = []

    def begin(url: str, **options: Any) -> Visit:
        page = browser.new_context(**options).new_page()
        page.set_default_timeout(WAIT_MS)
        one = Visit(page, url)
        page.on("request", lambda request: one._request(request.url))
        page.on("websocket", lambda socket: one._request(socket.url))
        page.on("pageerror", lambda error: one.wrong.append(f"script failed: {error}"))
        page.on("dialog", lambda dialog: one.wrong.append(f"a script of a message ran: {dialog.message}"))
        made.append(one)
        return one

    yield begin
    for one in made:
        one.page.context.close()
    assert [wrong for one in made for wrong in one.wrong] == []


__all__ = ["MARKUP", "REORDERED", "Live", "Visit", "id_of"]
