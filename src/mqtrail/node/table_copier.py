"""Keeps a slave's topics, groups and offsets those of its master (mqtrail.broker.operator.master_tables), and compares
both logs before the slave follows.

Every INTERVAL_S it asks the master, as Apache's slave of 4.9 does. An answer that cannot be had or read is logged when
that begins, and the tables stay as they are.
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress

from mqtrail.broker import CONFIG_CODES, END_CODE, OPTIONAL_CODES, PROGRESS_CODES, Broker, master_end
from mqtrail.net import ConnectionPool, Log, NetError
from mqtrail.store import LogDiffers, MessageStore
from mqtrail.wire import (
    BROKER_EVENTS_KEY,
    PROPERTY_KEYS,
    PROPERTY_WAIT,
    InvalidParameter,
    MQError,
    RemotingCommand,
    RequestCode,
    ResponseCode,
    SendMessageHeader,
    encode_properties,
    encode_trace,
)

INTERVAL_S = 10.0
RETRY_S = 1.0
TIMEOUT_MS = 5_000
BEHIND_WAIT_S = 30.0  # for the slave's log to reach the master's end
POLL_S = 0.05
EVENTS_GROUP = "_INNER_TRACE_PRODUCER"  # as trace messages of clients have
STORED_CODES = (
    ResponseCode.SUCCESS,
    ResponseCode.FLUSH_DISK_TIMEOUT,
    ResponseCode.FLUSH_SLAVE_TIMEOUT,
    ResponseCode.SLAVE_NOT_AVAILABLE,
)

log = Log()


class TableCopier:
    """Serves one slave. changed: called after tables were taken over, to save them. Closes pool at its stop."""

    def __init__(
        self,
        name: str,
        core: Broker,
        store: MessageStore,
        pool: ConnectionPool,
        clock: Callable[[], int],
        changed: Callable[[], None],
    ) -> None:
        self._name = name
        self._core = core
        self._store = store
        self._pool = pool
        self._clock = clock
        self._changed = changed
        self._master = ""
        self._known = asyncio.Event()
        self._due = asyncio.Event()
        self._is_failing = False
        self._events_refused = ""  # why the master did not take them
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start to copy."""
        self._task = asyncio.create_task(self._run())

    def follow(self, master: str | None) -> None:
        """Take the master's address from a name server; None: it has none now, so the last one stays."""
        if master and master != self._master:
            self._master = master
            self._known.set()

    def hurry(self) -> None:
        """Copy now, and not at the next interval."""
        self._due.set()

    async def stop(self) -> None:
        """End, and close the connections."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        await self._pool.close()

    async def _run(self) -> None:
        while True:
            await self._known.wait()
            self._due.clear()
            wait_s = INTERVAL_S
            try:
                await self.copy()
            except (NetError, MQError, TimeoutError, OSError) as error:
                wait_s = RETRY_S
                if not self._is_failing:
                    self._is_failing = True
                    log.warning(
                        "ha.tables_not_copied",
                        broker=self._name,
                        master=self._master,
                        found=str(error) or type(error).__name__,
                        remedy="none needed if the master returns; until then topics, groups and offsets stay as they "
                        "are. If it refuses, set inner_credentials to an account of its brokers",
                    )
            except Exception:  # a fault in one table must not end the copying for good: log it, and ask again
                log.sparse.exception("ha.tables_not_copied", broker=self._name)
            else:
                if self._is_failing:
                    self._is_failing = False
                    log.info("ha.tables_copied_again", broker=self._name, master=self._master)
                if not await self._send_events():
                    wait_s = RETRY_S
            with suppress(TimeoutError):
                async with asyncio.timeout(wait_s):
                    await self._due.wait()

    async def _send_events(self) -> bool:
        """Send the BrokerEvents of this slave to the trace topic of the master; return whether none is left.

        They wait if the master refuses them; what it refuses is logged once.
        """
        events = self._core.events
        if events is None or not len(events):
            return True
        waiting, config, now_ms = events.waiting, self._core.config, self._clock()
        header = SendMessageHeader(
            producer_group=EVENTS_GROUP,
            topic=config.trace_topic,
            default_topic_queue_nums=1,
            queue_id=0,
            born_timestamp=now_ms,
            properties=encode_properties({PROPERTY_KEYS: BROKER_EVENTS_KEY, PROPERTY_WAIT: "false"}),
        )
        command = RemotingCommand(RequestCode.SEND_MESSAGE, header.to_ext(), body=encode_trace(waiting).encode())
        try:
            reply = await self._pool.request(self._master, command, TIMEOUT_MS)
        except (NetError, MQError, OSError) as error:
            self._events_refused = str(error)
            return False
        if reply.code not in STORED_CODES:
            found = f"found answer {reply.code} to a trace message ({reply.remark}), expected success"
            if found != self._events_refused:
                log.warning(
                    "ha.events_not_sent",
                    broker=self._name,
                    master=self._master,
                    found=found,
                    remedy="none needed if the master takes messages later. Otherwise set inner_credentials to an "
                    f"account that may write to {config.trace_topic}",
                )
            self._events_refused = found
            return False
        self._events_refused = ""
        events.delivered(waiting)
        return True

    async def compare_logs(self) -> None:
        """Compare this log's last record with the master's at the same place, before anything is appended to it.

        LogDiffers: they are not the same. NetError: the master does not answer. A master that is not known, or does
        not show the record (a half message, an expired one), proves nothing.
        """
        last = self._store.last_record_offset
        if not self._master or last < 0:
            return
        ours = self._store.log_bytes(last, self._store.end_offset - last)
        command = RemotingCommand(RequestCode.VIEW_MESSAGE_BY_ID, {"offset": str(last)})
        reply = await self._pool.request(self._master, command, TIMEOUT_MS)
        if reply.code == ResponseCode.SUCCESS and reply.body and reply.body != ours[: len(reply.body)]:
            raise LogDiffers(
                f"found another record at physical offset {last} of the master {self._master} than the last one of "
                "this log: they are logs of different brokers, or one has lost messages. Compare both; to drop the "
                "slave's messages, start it with an empty folder"
            )

    async def copy(self) -> None:
        """Copy all tables once. NetError, MQError; TimeoutError: the log is too far behind for the offsets."""
        for code in CONFIG_CODES:
            if (body := await self._ask(code)) is not None:
                await self._adopt([(code, body)])
        found = [(code, body) for code in PROGRESS_CODES if (body := await self._ask(code)) is not None]
        end = await self._ask(END_CODE)
        assert end is not None
        end_offset = master_end(end)
        try:
            async with asyncio.timeout(BEHIND_WAIT_S):
                while self._store.end_offset < end_offset:
                    await asyncio.sleep(POLL_S)
        except TimeoutError:
            raise TimeoutError(
                f"found this log at physical offset {self._store.end_offset} after {BEHIND_WAIT_S:g} s, expected "
                f"{end_offset}, the end of the master's: offsets are copied when it has reached that"
            ) from None
        await self._adopt(found)

    async def _ask(self, code: RequestCode) -> bytes | None:
        reply = await self._pool.request(self._master, RemotingCommand(code), TIMEOUT_MS)
        if reply.code == ResponseCode.SUCCESS:
            return reply.body
        if code in OPTIONAL_CODES and reply.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
            return None
        raise InvalidParameter(f"found answer {reply.code} to request {int(code)} ({reply.remark}), expected success")

    async def _adopt(self, bodies: list[tuple[RequestCode, bytes]]) -> None:
        """Take tables over. They are decoded in another thread: they may be large."""
        tables = self._core.master_tables
        adopts = [await asyncio.to_thread(tables.decoded, code, body) for code, body in bodies if body]
        for adopt in adopts:
            adopt(self._clock())
        self._changed()
