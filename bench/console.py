"""Benchmarks of the console: start, memory, look-ups among ten million messages, and many viewers beside a busy broker.

A viewer does what a browser does but drawing: it asks for a page, opens the socket that the page names, waits until
the page's data arrives, and stays while live pages push further answers.
"""

from __future__ import annotations

import asyncio
import re
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import quantiles
from urllib.parse import quote
from uuid import uuid4

import httpx
import socketio
from playwright.sync_api import sync_playwright

from bench.lookup import FIRST_HOUR, HOURS, HOURS_QUICK, id_of, make_lake, size_of
from bench.registry import figure
from bench.rows import Bar, CannotMeasure, Row
from bench.session import Session
from mqtrail.client import ConsumeFromWhere, ConsumerConfig, SyncConsumer, SyncProducer
from mqtrail.testing import embedded
from mqtrail.wire import Message

MIB = 1 << 20
VIEWERS, VIEWERS_QUICK = 50, 4
VIEW_S, VIEW_QUICK_S = 300.0, 12.0
STAY_S = 10.0  # of a viewer on a page
DATA_TIMEOUT_S = 30.0
ASKED, DRAWN = 40, 10  # look-ups a round, pages drawn
SENDS_PER_S = 500
TOPIC, GROUP = "orders", "billing"
PAGES = {"/groups": GROUP, f"/group?name={GROUP}": "broker-a", "/cluster": "broker-a", "/": GROUP}
"""Page -> a word of its data."""
START_BAR_S, ONE_BAR_MIB, MANY_BAR_MIB, DATA_BAR_MS = 2.0, 200.0, 500.0, 500.0
TRACE_BAR_MS, DRAWN_BAR_MS, SEARCH_BAR_MS = 60.0, 700.0, 300.0


@figure("console", "pages: start, memory, look-ups among 10 M messages, 50 viewers beside a busy broker", seconds=480)
def console(session: Session) -> Iterator[Row]:
    """The lake and the broker stay; each start is a process of its own."""
    session.alone()
    hours, per_hour = size_of(session, HOURS, HOURS_QUICK)
    lake = session.fresh_folder("console") / "lake"
    make_lake(lake, hours, per_hour)
    millions = hours * per_hour / 1e6
    with embedded() as broker, busy(broker.namesrv_address):
        starts = [start_s(lake, broker.namesrv_address) for _ in range(session.rounds)]
        yield Row("console/start", "fork to the first page", "s", starts, bar=Bar("<=", START_BAR_S, of="ours"))
        with running(lake, broker.namesrv_address) as (url, process):
            ids = [id_of(number % hours, number * 7919 % per_hour, per_hour) for number in range(ASKED)]
            drawn = drawn_ms(url, ids[:DRAWN])
            asyncio.run(view(url, 1, len(PAGES) * STAY_S))
            yield _memory("one-viewer", "one viewer, after every page", [resident_mib(process)], ONE_BAR_MIB)
            found = timed(url, [f"trace?id={one}" for one in ids])
            yield _times("trace", f"one id among {millions:g} M messages, warm: the server", found, TRACE_BAR_MS)
            yield _times("drawn", "the same until the browser has drawn it", drawn, DRAWN_BAR_MS)
            found = timed(url, [search_of(number, hours) for number in range(ASKED)])
            yield _times("search", f"topic, verdict and hour among {millions:g} M: first page", found, SEARCH_BAR_MS)
            count, seconds = (VIEWERS_QUICK, VIEW_QUICK_S) if session.quick else (VIEWERS, VIEW_S)
            early = threading.Timer(seconds / 5, lambda: memory.append(resident_mib(process)))
            memory: list[float] = []
            early.start()
            views = asyncio.run(view(url, count, seconds))
            early.join()
            memory.append(resident_mib(process))
            yield _memory(
                "many-viewers", f"{count} viewers: after a fifth of the time, and at the end", memory, MANY_BAR_MIB
            )
            yield Row(
                "console/data",
                f"a page's data, p95 of {count} viewers for {seconds:.0f} s, broker at {SENDS_PER_S} sends/s",
                "ms",
                [quantiles(views.data_ms, n=20)[-1]],
                bar=Bar("<=", DATA_BAR_MS, of="ours"),
                errors=(len(views.errors), 0),
                more={"pages": len(views.data_ms), "pushes": views.pushes, "first_errors": views.errors[:3]},
            )


def _memory(name: str, what: str, found: list[float], limit: float) -> Row:
    return Row(f"console/memory/{name}", f"resident memory, {what}", "MiB", found, bar=Bar("<=", limit, of="ours"))


def _times(name: str, what: str, found: list[float], limit: float) -> Row:
    return Row(f"console/{name}", what, "ms", found, bar=Bar("<=", limit, of="ours"))


@dataclass
class Views:
    """What all viewers saw. data_ms: from the socket to the data, a value for each opened page."""

    data_ms: list[float] = field(default_factory=list)
    pushes: int = 0
    errors: list[str] = field(default_factory=list)


async def view(url: str, count: int, seconds: float) -> Views:
    """Let viewers open one page after the other, each at its own pace."""
    views = Views()
    end_s = time.monotonic() + seconds
    async with httpx.AsyncClient(base_url=url, timeout=DATA_TIMEOUT_S) as http:

        async def viewer(number: int) -> None:
            await asyncio.sleep(number * STAY_S / count)
            visit = number
            while time.monotonic() < end_s:
                path, words = list(PAGES.items())[visit % len(PAGES)]
                visit += 1
                try:
                    await open_page(http, url, path, words, views)
                except (httpx.HTTPError, socketio.exceptions.ConnectionError, TimeoutError) as error:
                    views.errors.append(f"{path}: {type(error).__name__} {error}")

        await asyncio.gather(*(viewer(number) for number in range(count)))
    return views


async def open_page(http: httpx.AsyncClient, url: str, path: str, words: str, views: Views) -> None:
    """Open a page, wait for its data, and stay."""
    page = await http.get(path)
    found = re.search(r"'client_id': '([0-9a-f-]+)'", page.text)
    if page.status_code != httpx.codes.OK or found is None:
        raise httpx.HTTPError(f"status {page.status_code}, or no socket is named")
    there = asyncio.Event()
    socket = socketio.AsyncClient(reconnection=False)

    def update(message: object) -> None:
        views.pushes += 1
        if words in str(message):
            there.set()

    socket.on("update", update)
    began_s = time.monotonic()
    names = {"client_id": found[1], "next_message_id": 0, "implicit_handshake": "true"}
    names |= {"tab_id": uuid4(), "old_tab_id": "", "document_id": uuid4()}
    query = "&".join(f"{name}={value}" for name, value in names.items())
    await socket.connect(f"{url}?{query}", transports=["websocket"], socketio_path="/_nicegui_ws/socket.io")
    try:
        await asyncio.wait_for(there.wait(), DATA_TIMEOUT_S)
        views.data_ms.append((time.monotonic() - began_s) * 1000)
        await asyncio.sleep(STAY_S - (time.monotonic() - began_s))
    finally:
        await socket.disconnect()


@contextmanager
def running(lake: Path, namesrv: str) -> Iterator[tuple[str, int]]:
    """Run the command; yield its URL and process id."""
    command = [sys.executable, "-m", "mqtrail", "console", "--port", "0", "--lake", str(lake), "--namesrv", namesrv]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        try:
            assert process.stdout is not None
            found = re.search(r"http://[0-9.]+:[0-9]+", process.stdout.readline())
            if found is None:
                raise RuntimeError("mqtrail console ended before it was ready")
            yield found[0], process.pid
        finally:
            process.kill()


def start_s(lake: Path, namesrv: str) -> float:
    """Return the seconds from the fork to the first page."""
    began_s = time.monotonic()
    with running(lake, namesrv) as (url, _):
        httpx.get(url, timeout=DATA_TIMEOUT_S).raise_for_status()
        return time.monotonic() - began_s


def timed(url: str, questions: list[str]) -> list[float]:
    """Return the milliseconds of each question to the HTTP API; the first one, which opens the lake, is left out."""
    with httpx.Client(base_url=f"{url}/api/v1/", timeout=DATA_TIMEOUT_S) as http:
        times = []
        for question in [questions[-1], *questions]:
            began_s = time.monotonic()
            http.get(question).raise_for_status()
            times.append((time.monotonic() - began_s) * 1000)
    return times[1:]


def search_of(number: int, hours: int) -> str:
    """Return a search for a topic and a verdict in an hour."""
    begin_s = (FIRST_HOUR + number % hours) * 3600
    since, until = (time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(begin_s + late)) for late in (0, 3600))
    return f"search?q={quote(f'topic:orders-{number % 20} verdict:CONSUMED from:{since} to:{until}')}&limit=50"


def drawn_ms(url: str, ids: list[str]) -> list[float]:
    """Return the milliseconds until a browser shows the verdict of each message; the first page is left out."""
    chromium = shutil.which("chromium")
    if chromium is None:
        raise CannotMeasure("found no chromium, expected it: scripts/chromium.sh installs it on Debian")
    times = []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = browser.new_page()
        for msg_id in [ids[-1], *ids]:
            began_s = time.monotonic()
            page.goto(f"{url}/message?id={msg_id}")
            page.wait_for_function("document.body?.innerText.includes('CONSUMED')")
            times.append((time.monotonic() - began_s) * 1000)
        browser.close()
    return times[1:]


@contextmanager
def busy(namesrv: str) -> Iterator[None]:
    """Send at a steady rate; a group consumes half as fast, so that its lag is never empty."""
    is_over = threading.Event()
    config = ConsumerConfig(consume_from=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET)

    def send() -> None:
        with SyncProducer("bench", namesrv) as producer:
            next_s = time.monotonic()
            while not is_over.is_set():
                producer.send(Message(TOPIC, b"x" * 200, keys=["bench"]))
                next_s += 1 / SENDS_PER_S
                is_over.wait(max(0.0, next_s - time.monotonic()))

    def consume() -> None:
        with SyncConsumer(GROUP, namesrv, {TOPIC: "*"}, config=config) as consumer:
            while not is_over.wait(2 / SENDS_PER_S):
                delivery = consumer.receive(timeout_ms=1_000)
                if delivery is not None:
                    with delivery.process():
                        pass

    threads = [threading.Thread(target=one) for one in (send, consume)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        is_over.set()
        for thread in threads:
            thread.join()


def resident_mib(process: int) -> float:
    """Return the resident memory of a process, with mapped files, in MiB."""
    for line in Path(f"/proc/{process}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    raise RuntimeError(f"/proc/{process}/status has no VmRSS line: the process has ended")
