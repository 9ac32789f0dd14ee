"""Writes trace records of what passes the door, as RocketMQ's clients do (docs/design/trace-text.md).

Records are gathered for LINGER_S and sent in trace messages of at most TRACE_MESSAGE_SIZE_MAX characters. What does not
fit into RECORDS_MAX, or cannot be sent, is counted, and a TraceLoss record reports it.
"""

import asyncio
import secrets
from collections.abc import Iterator, Sequence
from typing import Final

from mqtrail.clock import now_ms
from mqtrail.wire import (
    OWN_HOST,
    PROPERTY_KEYS,
    PROPERTY_WAIT,
    TRACE_KEYS_SIZE_MAX,
    TRACE_MESSAGE_SIZE_MAX,
    MQError,
    RemotingCommand,
    RequestCode,
    SendMessageHeader,
    TraceBatch,
    TraceLoss,
    TraceRecord,
    encode_properties,
    encode_record_text,
    encode_trace,
    trace_keys,
)

from .caller import Caller, succeed
from .config import CLIENT_ID, PRODUCER_GROUP

LINGER_S: Final = 0.2
AWAY_PAUSE_S: Final = 0.5  # between two looks at a database that is away
RECORDS_MAX: Final = 20_000
RECORDS_OF_MESSAGE: Final = 200


class Tracer:
    """`start`, then `stop`, which sends what is left."""

    def __init__(self, caller: Caller, topic: str) -> None:
        self._caller = caller
        self._topic = topic
        self._start_id = secrets.token_hex(8)
        self._sequence = 0
        self._records: list[TraceRecord] = []
        self._wake = asyncio.Event()
        self._stopping = False
        self._task: asyncio.Task[None] | None = None
        self._lost_count = self._lost_total = 0
        self._lost_from_ms = 0

    def start(self) -> None:
        self._task = asyncio.create_task(self._run())

    async def stop(self) -> None:
        self._stopping = True
        self._wake.set()
        if self._task is not None:
            await self._task

    def record(self, *records: TraceRecord) -> None:
        """Add records that belong together. Above RECORDS_MAX they are dropped and counted."""
        if len(self._records) + len(records) > RECORDS_MAX:
            self._lose(len(records))
            return
        self._records += records
        self._wake.set()

    def _lose(self, count: int) -> None:
        if not self._lost_count:
            self._lost_from_ms = now_ms()
        self._lost_count += count
        self._lost_total += count

    async def _run(self) -> None:
        while not self._stopping or self._records:
            await self._wake.wait()
            self._wake.clear()
            if not self._stopping:
                await asyncio.sleep(LINGER_S)
            records, self._records = self._records, []
            for part in _parts(records):
                while self._caller.away is not None and not self._stopping:
                    await asyncio.sleep(AWAY_PAUSE_S)
                await self._send(*part)

    async def _send(self, records: Sequence[TraceRecord], text: str) -> None:
        """Send one trace message. text: of the records. Records that the broker refuses are counted as lost."""
        self._sequence += 1
        head: list[TraceRecord] = [
            TraceBatch(
                client_id=CLIENT_ID,
                start_id=self._start_id,
                sequence=self._sequence,
                time_stamp=now_ms(),
                dropped_total=self._lost_total,
            )
        ]
        lost_count, lost_from_ms = self._lost_count, self._lost_from_ms
        if lost_count:
            self._lost_count = 0
            head.append(
                TraceLoss(
                    client_id=CLIENT_ID,
                    start_id=self._start_id,
                    from_ms=lost_from_ms,
                    to_ms=now_ms(),
                    count=lost_count,
                    reason="buffer of the HTTP door full, or refused by the broker",
                )
            )
        properties = {PROPERTY_WAIT: "true"}
        if keys := _keys(records):
            properties[PROPERTY_KEYS] = keys
        header = SendMessageHeader(PRODUCER_GROUP, self._topic, born_timestamp=now_ms())
        header.properties = encode_properties(properties)
        body = (encode_trace(head) + text).encode("utf-8", "replace")
        try:
            await succeed(
                self._caller, RemotingCommand(RequestCode.SEND_MESSAGE_V2, header.to_ext_v2(), body), OWN_HOST
            )
        except (MQError, TimeoutError):
            self._lost_total -= lost_count  # these were counted before
            self._lose(lost_count + len(records))
            if lost_count:
                self._lost_from_ms = lost_from_ms


def _parts(records: Sequence[TraceRecord]) -> Iterator[tuple[list[TraceRecord], str]]:
    """Yield the records of each trace message, and their text."""
    part: list[TraceRecord] = []
    texts: list[str] = []
    size = 0
    for record in records:
        text = encode_record_text(record)
        if part and (len(part) >= RECORDS_OF_MESSAGE or size + len(text) > TRACE_MESSAGE_SIZE_MAX):
            yield part, "".join(texts)
            part, texts, size = [], [], 0
        part.append(record)
        texts.append(text)
        size += len(text)
    if part:
        yield part, "".join(texts)


def _keys(records: Sequence[TraceRecord]) -> str:
    """Return the keys of a trace message; those beyond TRACE_KEYS_SIZE_MAX are left out."""
    kept: list[str] = []
    size = 0
    for key in trace_keys(records):
        cleaned = key.translate({1: None, 2: None})
        size += len(cleaned.encode("utf-8", "replace")) + 1
        if size > TRACE_KEYS_SIZE_MAX:
            break
        kept.append(cleaned)
    return " ".join(kept)
