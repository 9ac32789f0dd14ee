"""Degraded: what a producer does with `degrade` while the cluster is unreachable.

    send ──all attempts fail──► file ──► DEGRADED          file ──the cluster is back──► broker ──► mark in the file
      ▲                           ▲
      └── its lane is free        └── its lane has messages in the file: no attempt, so that none overtakes

A lane is an order key of a topic, or a queue that the caller chose. Sends without either have no lane and no order.
The file is sent from the front, one send after another; after a failure the rest of its topic waits for the next round.
Every message gets its id before the first attempt. A crash between a send and its mark, an answer that is lost, and a
power cut (the marks are not synced) send it again under the same id.

A file belongs to one producer (flock). Producers of the same group and cluster on this machine take over the files of
processes that ended, at their start and every ADOPT_MS. Messages that are too old, or that a broker refuses for good,
go to a file with the suffix .kept, and are left to people.
"""

import asyncio
import itertools
import os
import time
import weakref
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol, TypeVar

from mqtrail.clock import now_ms
from mqtrail.net import Log
from mqtrail.wire import (
    PROPERTY_CORRELATION_ID,
    PROPERTY_MSG_TYPE,
    PROPERTY_TRAN_MSG,
    PROPERTY_UNIQ_KEY,
    InvalidParameter,
    Message,
    MessageQueue,
    MQError,
    Refusal,
    SendStatus,
)

from ..core import (
    ClientClosed,
    ClientInstance,
    InvalidMessage,
    NoNameServer,
    Outgoing,
    ProducerConfig,
    RouteNotFound,
    SendFailed,
    SendResult,
    SpoolError,
    TooManyInFlight,
    folder_name,
    keep_going,
    orphans,
    unique_ids,
)
from .degraded_file import KEPT_SUFFIX, DegradedFile, HeldMessage, HeldSend
from .selectors import Selector
from .sending import RETRY_CODES

log = Log()

T = TypeVar("T")

ADOPT_MS: Final = 10_000  # interval at which files of ended processes are looked for
NEVER_HELD: Final = (PROPERTY_TRAN_MSG, PROPERTY_CORRELATION_ID)  # half messages, and requests, whose caller waits

_serial = itertools.count(1)
_open: "weakref.WeakSet[Degraded]" = weakref.WeakSet()


class Target(NamedTuple):
    """Where one send goes, and within which time; see Producer.send."""

    queue: MessageQueue | None = None
    order_key: str | int | None = None
    select: Selector | None = None
    timeout_ms: int | None = None


@dataclass(slots=True)
class Journey:
    """The attempts of one message, also over a stay in a file: all have one send_id in the trace."""

    send_id: str = ""
    attempt: int = 0
    out: Outgoing | None = None

    def begin(self, out: Outgoing) -> None:
        """Continue with these attempts."""
        out.degradable, out.send_id, out.attempt = True, self.send_id, self.attempt
        self.out = out


@dataclass(frozen=True, slots=True)
class DegradedCounts:
    """Messages since the start, a batch as one. waiting, size: in files now, also those taken over; size in bytes."""

    held: int = 0
    replayed: int = 0
    kept: int = 0
    waiting: int = 0
    size: int = 0


class SendDirectly(Protocol):
    """Makes all attempts of a send. Raises as Producer.send."""

    def __call__(
        self, message: Message | Sequence[Message], target: Target, journey: Journey | None = None
    ) -> Awaitable[SendResult]: ...


class NoteNotSent(Protocol):
    """Reports to the hooks that no further attempt was made, and why. Sender.note_not_sent."""

    def __call__(self, out: Outgoing, text: str, *, final: bool) -> object: ...


class _LaneHeld(Exception):
    """The selector chose a queue that has messages in the file."""


@dataclass(slots=True)
class _Files:
    """The files of one producer, and what waits in them."""

    own: DegradedFile
    kept: DegradedFile
    adopted: list[DegradedFile] = field(default_factory=list)
    lanes: Counter[str] = field(default_factory=Counter)
    topics: Counter[str] = field(default_factory=Counter)

    def all(self) -> list[DegradedFile]:
        return [*self.adopted, self.own]  # what ended processes left is older

    def note(self, held: HeldSend, sign: int) -> None:
        for counter, name in ((self.lanes, held.lane), (self.topics, held.topic)):
            counter[name] += sign
            if counter[name] <= 0:
                del counter[name]


class Degraded:
    """Keeps the sends of one producer in a local file until the cluster is back. Belongs to one event loop."""

    def __init__(
        self,
        client: ClientInstance,
        group: str,
        config: ProducerConfig,
        compose: Callable[[Message | Sequence[Message]], Outgoing],
        send_directly: SendDirectly,
        note_not_sent: NoteNotSent,
    ) -> None:
        self._client = client
        self._config = config
        self._compose = compose
        self._send = send_directly
        self._note = note_not_sent
        folder = Path.home() / ".mqtrail" / "degraded" if config.degrade_dir is None else config.degrade_dir
        self._folder = folder / folder_name(client.name_servers.names) / folder_name([group])
        self._files = self._new_files()
        self._disk = asyncio.Lock()  # one thread at a time works with the files; appends keep their order
        self._wake = asyncio.Event()
        self._replaying: asyncio.Task[None] | None = None
        self._pause_ms = config.degrade_retry_ms
        self._attempts: dict[tuple[Path, int], int] = {}  # of entries that were tried again; at most one for each topic
        self._held = self._replayed = self._kept = 0

    @property
    def counts(self) -> DegradedCounts:
        """Counts of the messages that wait, and of the outcomes."""
        return DegradedCounts(
            self._held,
            self._replayed,
            self._kept,
            self._files.topics.total(),
            sum(file.size for file in self._files.all()),
        )

    async def start(self) -> None:
        """Take over what ended processes left, before the first send: its lanes are not free."""
        _open.add(self)
        await self._adopt()
        self._replaying = self._client.spawn(keep_going("producer.replay", self._turn, group=self._folder.name))

    async def close(self) -> None:
        """Stop sending from the files, and release them. The next start sends the rest."""
        if self._replaying is not None:
            self._replaying.cancel()
            await asyncio.wait([self._replaying])
        _open.discard(self)
        waiting = self.counts.waiting
        if waiting:
            log.sparse.warning(
                "producer.closed_degraded",
                count=waiting,
                folder=str(self._folder),
                remedy="start a producer of this group on this machine: it sends them",
            )
        async with self._disk:
            await asyncio.to_thread(self._close_files)
        self._files = self._new_files()

    # -- sending ---------------------------------------------------------------------------------------------------

    async def send(self, message: Message | Sequence[Message], target: Target) -> SendResult:
        """Send, or hold; see Producer.send."""
        if any(_is_never_held(one) for one in _all(message)):
            return await self._send(message, target)
        message = _with_id(message) if isinstance(message, Message) else [_with_id(one) for one in message]
        topic = next((one.topic for one in _all(message)), "")
        lane, queue = _lane(topic, target.queue, target.order_key), target.queue
        if lane in self._files.lanes and lane:
            return await self._hold(message, target, lane, queue, Journey(out=self._compose(message)), None)
        journey = Journey()
        select = target.select
        if select is not None:

            def choose(queues: Sequence[MessageQueue], one: Message) -> MessageQueue | None:
                nonlocal lane, queue
                queue = select(queues, one)
                lane = _lane(topic, queue, None)
                if lane in self._files.lanes and lane:
                    raise _LaneHeld
                return queue

            target = target._replace(select=choose)
        try:
            return await self._send(message, target, journey)
        except _LaneHeld:
            return await self._hold(message, target, lane, queue, journey, None)
        except MQError as error:
            if not _may_succeed_later(error):
                raise
            if select is not None and queue is None:
                assert journey.out is not None
                self._note(journey.out, str(error), final=True)
                raise  # no queue was chosen, and a selector cannot be kept
            return await self._hold(message, target, lane, queue, journey, error)

    async def _hold(
        self,
        message: Message | Sequence[Message],
        target: Target,
        lane: str,
        queue: MessageQueue | None,
        journey: Journey,
        cause: MQError | None,
    ) -> SendResult:
        """Write a send to the file. If that fails, raise its cause, or SendFailed."""
        out = journey.out
        assert out is not None
        out.send_id = out.send_id or unique_ids().next()
        reason = str(cause) if cause is not None else "earlier messages of its lane wait in the local file"
        held = HeldSend(
            tuple(HeldMessage(one.topic, one.body, one.flag, one.wire_properties()) for one in _all(message)),
            not isinstance(message, Message),
            lane,
            None if queue is None else (queue.broker_name, queue.queue_id),
            target.order_key,
            out.send_id,
            out.attempt + 1,
            now_ms(),
        )
        try:
            await _to_end(self._write(held))
        except SpoolError as error:
            self._note(out, f"not kept: {error}", final=True)
            text = f"{error}; free disk space, or raise degrade_size_max"
            log.sparse.error("producer.not_held", topic=out.topic, msg_id=out.msg_id, error=text)
            if cause is not None:
                cause.add_note(f"the local file did not take the message: {text}")
                raise cause from error
            raise SendFailed(out.topic, out.msg_id, [], f"{reason}, which is not to be overtaken; {text}") from error
        self._note(out, "kept in a local file", final=False)
        self._held += 1
        log.sparse.warning("producer.degraded", topic=out.topic, msg_id=out.msg_id, reason=reason)
        self._wake.set()
        return SendResult(SendStatus.DEGRADED, out.msg_id, "", queue or MessageQueue(out.topic, "", -1), -1)

    async def _write(self, held: HeldSend) -> None:
        self._files.note(held, 1)  # from now on its lane is not free
        try:
            await self._on_disk(self._append, held)
        except BaseException:
            self._files.note(held, -1)
            raise

    def _append(self, held: HeldSend) -> None:
        self._files.own.add(held, sync=self._config.degrade_sync)

    # -- replaying -------------------------------------------------------------------------------------------------

    async def _turn(self) -> None:
        if not self._files.topics:
            self._wake.clear()
            self._pause_ms = self._config.degrade_retry_ms
            try:
                async with asyncio.timeout(ADOPT_MS / 1000):
                    await self._wake.wait()
            except TimeoutError:
                await self._adopt()
            else:
                await asyncio.sleep(self._pause_ms / 1000)  # the cluster was away a moment ago
            return
        sent_before = self._replayed + self._kept
        blocked: set[str] = set()
        for file in self._files.all():
            await self._replay(file, blocked)
        await self._drop_empty()
        if not self._files.topics:
            log.sparse.info("producer.replayed", count=self._replayed, folder=str(self._folder))
            return
        if self._replayed + self._kept > sent_before:
            self._pause_ms = self._config.degrade_retry_ms
        await asyncio.sleep(self._pause_ms / 1000)
        self._pause_ms = min(2 * self._pause_ms, self._config.degrade_retry_max_ms)

    async def _replay(self, file: DegradedFile, blocked: set[str]) -> None:
        """Send a file from its front. blocked: topics of which a send failed in this round, also one of an older file:
        the rest of them waits for the next round."""
        position = 0
        while not blocked.issuperset(self._files.topics):
            found = await self._on_disk(file.first, position)
            if found is None:
                return
            held, start, position = found
            if held.topic in blocked:
                continue
            if not await self._settle(held, file, start, position):
                blocked.add(held.topic)

    async def _settle(self, held: HeldSend, file: DegradedFile, start: int, end: int) -> bool:
        """Send one entry, or keep it for people, and mark it. False: it stays."""
        place = (file.path, start)
        journey = Journey(held.send_id, self._attempts.get(place, held.attempt))
        messages = [one.message() for one in held.messages]
        age_ms = now_ms() - held.held_ms
        if age_ms > self._config.degrade_age_max_ms:
            journey.begin(self._compose(messages if held.is_batch else messages[0]))
            reason: str | None = f"it is {age_ms} ms old, more than degrade_age_max_ms"
        else:
            target = Target(held.place() if held.order_key is None else None, held.order_key)
            try:
                await self._send(messages if held.is_batch else messages[0], target, journey)
                reason = None
            except ClientClosed:
                return False
            except (InvalidMessage, InvalidParameter) as error:
                reason = str(error)
            except MQError as error:
                if not isinstance(error, Refusal) or _may_succeed_later(error):
                    if journey.out is not None:
                        self._attempts[place] = journey.out.attempt
                    return False
                reason = str(error)
                journey.out = None  # the hooks know
        self._attempts.pop(place, None)
        if reason is None:
            self._replayed += 1
        elif not await self._keep(held, journey, reason):
            return False
        try:
            await _to_end(self._on_disk(file.remove, held, start, end))
        finally:
            self._files.note(held, -1)
        return True

    async def _keep(self, held: HeldSend, journey: Journey, reason: str) -> bool:
        """Move a send to the file for people; False if that cannot be written."""
        path = self._files.kept.path
        msg_ids = ",".join(one.properties.get(PROPERTY_UNIQ_KEY, "") for one in held.messages)
        try:
            await self._on_disk(self._files.kept.add, held)
        except OSError as error:
            log.sparse.error("producer.not_kept", path=str(path), msg_id=msg_ids, error=str(error))
            return False
        if journey.out is not None:
            self._note(journey.out, reason, final=True)
        self._kept += 1
        log.sparse.error(
            "producer.gave_up",
            topic=held.topic,
            msg_id=msg_ids,
            reason=reason,
            path=str(path),
            remedy="read the file with held_messages, and send or drop its messages",
        )
        return True

    # -- files -----------------------------------------------------------------------------------------------------

    def _new_files(self) -> _Files:
        path = self._folder / f"{time.time_ns():016x}-{os.getpid()}-{next(_serial)}.spool"  # sorted by age
        own, kept = (DegradedFile(one, self._config.degrade_size_max) for one in (path, path.with_suffix(KEPT_SUFFIX)))
        return _Files(own, kept)

    async def _adopt(self) -> None:
        """Take over files of ended processes, and note their lanes."""
        for file, sends in await self._on_disk(self._take_over):
            self._files.adopted.append(file)
            for held in sends:
                self._files.note(held, 1)
            log.sparse.info("producer.took_over", path=str(file.path), count=len(sends))
        await self._drop_empty()

    def _take_over(self) -> list[tuple[DegradedFile, list[HeldSend]]]:
        found = []
        mine = {file.path for file in self._files.all()}
        for path in orphans(self._folder):
            if path not in mine and (file := DegradedFile.adopt(path, self._config.degrade_size_max)) is not None:
                sends, position = [], 0
                while (entry := file.first(position)) is not None:
                    held, _, position = entry
                    sends.append(_without_bodies(held))
                found.append((file, sends))
        return found

    async def _drop_empty(self) -> None:
        for file in [file for file in self._files.adopted if not file.message_count]:
            await _to_end(self._on_disk(file.close))
            self._files.adopted.remove(file)

    def _close_files(self) -> None:
        self._files.kept.abandon()
        for file in self._files.all():
            if file.message_count:
                file.abandon()  # its marks say what was sent
            else:
                file.close()

    def abandon(self) -> None:
        """Close the parent's files in a child after fork, without changing them or their locks."""
        for file in (*self._files.all(), self._files.kept):
            file.abandon()

    async def _on_disk(self, act: Callable[..., T], *args: Any) -> T:
        async with self._disk:
            return await asyncio.to_thread(act, *args)


def _without_bodies(held: HeldSend) -> HeldSend:
    """Return a send without its bodies, for its lane and topic."""
    return HeldSend((HeldMessage(held.topic, b"", 0, {}),), held.is_batch, held.lane, None, None, "", 0, held.held_ms)


async def _to_end(work: Awaitable[T]) -> T:
    """Return work's result; it continues if the caller is cancelled."""
    return await asyncio.shield(asyncio.ensure_future(work))


def _all(message: Message | Sequence[Message]) -> Sequence[Message]:
    return (message,) if isinstance(message, Message) else message


def _may_succeed_later(error: MQError) -> bool:
    """Whether the message is held after this failure. A refusal may come from a name server, too."""
    if isinstance(error, Refusal):
        return error.response_code in RETRY_CODES
    return isinstance(error, SendFailed | RouteNotFound | NoNameServer) and not isinstance(error, TooManyInFlight)


def _is_never_held(message: Message) -> bool:
    properties = message.properties
    return any(name in properties for name in NEVER_HELD) or properties.get(PROPERTY_MSG_TYPE) == "reply"


def _with_id(message: Message) -> Message:
    if PROPERTY_UNIQ_KEY in message.properties:
        return message
    return replace(message, properties={**message.properties, PROPERTY_UNIQ_KEY: unique_ids().next()})


def _lane(topic: str, queue: MessageQueue | None, order_key: str | int | None) -> str:
    """Return the name of a lane; empty for a send without order."""
    if order_key is not None:
        return f"{topic}\0key {order_key}"
    return "" if queue is None else f"{topic}\0queue {queue.broker_name} {queue.queue_id}"


def _after_fork_in_child() -> None:
    for degraded in list(_open):
        degraded.abandon()
    _open.clear()


os.register_at_fork(after_in_child=_after_fork_in_child)
