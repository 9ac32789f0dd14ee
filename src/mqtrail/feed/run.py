"""One run of a feed: it stops in order, saves its state at an interval, and waits for a source that is unreachable."""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import replace
from typing import Any, ClassVar, Final

from mqtrail.client import ProducerConfig
from mqtrail.net import Log
from mqtrail.wire import MQError

from .lanes import Lanes

log = Log()

SAVE_S: Final = 0.5  # between two saves of the state, at most
STOP_S: Final = 10.0  # after `stop`: how long what is on its way may take
PROGRESS_S: Final = 10.0  # between two lines of progress in the log
RETRY_S: Final = 0.2  # delay before the source is asked again; doubles
RETRY_MAX_S: Final = 10.0


class Feed(ABC):
    """Runs until stopped. A subclass says where messages come from.

    NAME: in log events. AWAY: the error of a source that may answer later. ERROR: the error of what a retry would not
    change. retry_ms: how long the source may be away without progress.
    """

    NAME: ClassVar[str]
    AWAY: ClassVar[type[MQError]]
    ERROR: ClassVar[type[MQError]]

    def __init__(self, namesrv: str, producer: ProducerConfig, retry_ms: int) -> None:
        """namesrv, producer: how to reach the brokers."""
        self._namesrv = namesrv
        # Lanes repeat a failed send themselves, in its place.
        self._producer_config = replace(producer, retry_count=0, degrade=False, auto_batch=False)
        self._retry_s = retry_ms / 1000
        self._dirty = False
        self._saving = asyncio.Lock()
        self._stopping = asyncio.Event()
        self._progress_s = time.monotonic()

    def stop(self) -> None:
        """Let the run end after what is on its way is acknowledged. Call it in the loop."""
        self._stopping.set()

    # -- what a subclass does --------------------------------------------------------------------------------------

    @abstractmethod
    def _state_writer(self) -> Callable[[], None] | None:
        """Return what writes the state as it is now, which is called in a thread; None: there is no state. OSError."""

    @abstractmethod
    def _source_to_check(self) -> str:
        """Return what an operator should check about a source that is away."""

    @abstractmethod
    def _progress(self) -> tuple[int, dict[str, Any]]:
        """Return the number of messages so far, and what else a line of progress says."""

    # -- what it has for that --------------------------------------------------------------------------------------

    async def _save(self) -> None:
        """Save the state, durable, while the loop goes on. A write ends before the next one begins, also if this is
        cancelled. OSError."""
        async with self._saving:
            write = self._state_writer()
            if write is None:
                return
            self._dirty = False
            writing = asyncio.ensure_future(asyncio.to_thread(write))
            try:
                await asyncio.shield(writing)
            except asyncio.CancelledError:
                await asyncio.wait([writing])
                raise

    async def _deliver(self, lanes: Lanes[Any], work: Callable[[], Awaitable[None]]) -> None:
        """Do the work, and wait until its messages are acknowledged, or until `stop`. MQError, OSError."""
        saving = asyncio.create_task(self._keep_saving())
        try:
            async with lanes:
                await self._until_stopped(self._whole(lanes, work), saving, lanes.failure)
        finally:
            saving.cancel()
            await asyncio.gather(saving, return_exceptions=True)
            await self._save()

    async def _patiently(self, act: Callable[[], Awaitable[None]], lanes: Lanes[Any] | None = None) -> None:
        """Do it; if the source is away, again, until there was no progress. lanes: let them send the rest before."""
        self._progress_s = time.monotonic()
        pause_s = RETRY_S
        while True:
            begun_s = time.monotonic()
            try:
                await act()
                return
            except self.AWAY as error:
                if lanes is not None:
                    await lanes.drain()  # it continues after what is acknowledged
                if self._progress_s > begun_s:
                    pause_s = RETRY_S
                if time.monotonic() - self._progress_s + pause_s > self._retry_s:
                    raise self.ERROR(
                        f"{error}; no progress for {self._retry_s:.0f} s: check {self._source_to_check()}, and start "
                        "it again: it continues there"
                    ) from error
                log.warning("feed.source_away", feed=self.NAME, error=str(error), retry_s=pause_s)
            try:
                async with asyncio.timeout(pause_s):
                    await self._stopping.wait()
                return
            except TimeoutError:
                pause_s = min(2 * pause_s, RETRY_MAX_S)

    # -- inside ----------------------------------------------------------------------------------------------------

    async def _whole(self, lanes: Lanes[Any], work: Callable[[], Awaitable[None]]) -> None:
        try:
            await work()
        except MQError:
            await lanes.drain()  # what came before it is then not sent again
            raise
        await lanes.drain()

    async def _until_stopped(self, work: Coroutine[Any, Any, None], *guards: asyncio.Future[None]) -> None:
        """Do the work; after `stop`, for STOP_S at most. Raises what it, or a guard, fails with."""
        working: asyncio.Future[None] = asyncio.create_task(work)
        stopping = asyncio.create_task(self._stopping.wait())
        waited: list[asyncio.Future[Any]] = [working, stopping, *guards]
        try:
            await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
            for guard in guards:
                if guard.done():
                    guard.result()
            await asyncio.wait((working, *guards), timeout=STOP_S, return_when=asyncio.FIRST_COMPLETED)
            for one in (working, *guards):
                if one.done():
                    one.result()
            if not working.done():
                remedy = "none needed: what is not acknowledged is sent by the next run"
                log.warning("feed.stopped", feed=self.NAME, remedy=remedy)
        finally:
            stopping.cancel()
            working.cancel()
            await asyncio.gather(working, stopping, return_exceptions=True)

    async def _keep_saving(self) -> None:
        sent, at_s = 0, time.monotonic()
        while True:
            await asyncio.sleep(SAVE_S)
            if self._dirty:
                await self._save()
            if (passed_s := time.monotonic() - at_s) >= PROGRESS_S:
                total, more = self._progress()
                rate = round((total - sent) / passed_s) if sent else None
                log.info("feed.progress", feed=self.NAME, sent=total, rate=rate, **more)
                sent, at_s = total, time.monotonic()
