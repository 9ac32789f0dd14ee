"""Name server and broker processes: the real cores and the real store, in a shell of virtual time, network and disk.

The shell does the work of mqtrail.node: it writes Sends when the log is durable up to their offset, runs syncs in a
thread of their own (one at a time, while the loop continues), writes queue files, checkpoints, indexes, ticks and
registers. A process may end in the middle of any call; its operator starts it again, and restores from a copy the
records that the broker reports as damaged.
"""

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from mqtrail.broker import Broker, BrokerConfig, Lane
from mqtrail.namesrv import NameServer, NameServerConfig
from mqtrail.node.clock import SteadyClock
from mqtrail.store import CommitLogConfig, CommitLogStore, ConfigFileStore, MemoryDisk, StoreBroken, StoreError
from mqtrail.store.commitlog.mark import DurableMark
from mqtrail.wire import (
    CreateTopicHeader,
    FrameDecoder,
    Host,
    MQError,
    Peer,
    PeerId,
    Perm,
    RemotingCommand,
    RemotingError,
    RequestCode,
    ResponseCode,
    Send,
    answer,
    decode_command,
    encode_command,
)
from tests.store.hard_disk import HardDisk, HardFile, PowerCut, Rates

from .engine import START_MS, Engine
from .history import Ended, Flushed, History, Jump, Lost
from .network import Link, Network

DELAY_LEVELS = "1s 2s 3s 5s 8s"
STORE = CommitLogConfig(
    segment_size=64 * 1024,
    queue_entries=50,
    index_slots=16,
    index_entries=200,
    message_size_max=16 * 1024,
    timer_log_file_size=52 * 64 + 16,
    message_delay_level=DELAY_LEVELS,
)
FLUSH_MS, QUEUES_MS, INDEX_MS, REGISTER_MS, EXPIRE_MS, TABLES_MS = 500.0, 1_000.0, 200.0, 5_000.0, 2_000.0, 1_000.0
LOCK_TTL_MS = 9_000  # of a queue, renewed by ordered consumers
QUEUES = 2  # queues of the topic on each broker
POWER_SHARE = 0.6  # share of process ends that are power cuts of the machine


def first_command(data: bytes) -> RemotingCommand:
    """Return the one command of a frame."""
    decoder = FrameDecoder()
    decoder.feed(data)
    frame = decoder.next_frame()
    assert frame is not None
    return decode_command(frame)


class SimNameServer:
    """A name server that may be killed: it loses its routes until brokers register again."""

    def __init__(self, engine: Engine, network: Network, address: str) -> None:
        self.address = address
        self._engine, self._network = engine, network
        self._files = ConfigFileStore(MemoryDisk())
        self._links: dict[int, Link] = {}
        self.start()

    def start(self) -> None:
        self._core = NameServer(NameServerConfig(), self._files, now_ms=self._now_ms())
        self._network.listeners[self.address] = self
        self._tick()

    def kill(self) -> None:
        """End the process, and start it again a while later."""
        self._engine.log("name server killed")
        del self._network.listeners[self.address]
        for link in list(self._links.values()):
            link.close()
        self._links.clear()
        self._engine.after(self._engine.between(200, 3_000), self.start)

    def _now_ms(self) -> int:
        return START_MS + int(self._engine.now_ms)

    def _tick(self) -> None:
        if self._network.listeners.get(self.address) is self:
            self._core.tick(self._now_ms())

    def accepted(self, link: Link) -> None:
        self._links[link.number] = link

    def closed(self, link: Link) -> None:
        if self._links.pop(link.number, None) is not None:
            self._core.disconnected(PeerId(link.number))

    def received(self, link: Link, data: bytes) -> None:
        if link.number in self._links:
            peer = Peer(PeerId(link.number), link.client_host)
            for send in self._core.handle(peer, first_command(data), self._now_ms()):
                link.to_client(encode_command(send.command))


@dataclass(slots=True)
class Faults:
    """The faults of a broker's machine. Times are ms, rates a share of calls or of restarts."""

    disk: Rates = field(default_factory=Rates)
    sync_ms_max: float = 8.0
    rot: float = 0.0
    lane: float = 0.5  # share of frames that take the fast lane
    checkpoint_ms: float = 5_000.0


class SimBroker:
    """One broker and its machine. Subclasses plant bugs by the attributes in capitals."""

    STORE: type[CommitLogStore] = CommitLogStore
    CORE: type[Broker] = Broker

    def __init__(
        self,
        engine: Engine,
        network: Network,
        history: History,
        *,
        name: str,
        address: Host,
        namesrv: str,
        faults: Faults,
    ) -> None:
        self.name, self.address, self.namesrv, self.faults = name, address, namesrv, faults
        self.engine, self.network, self.history = engine, network, history
        self.disk = HardDisk(engine.chance)
        self.config = BrokerConfig(
            broker_name=name,
            address=address,
            ha_address=Host(address.ip, address.port + 1),
            sync_flush=history.sync_flush,
            default_topic_queue_nums=2,
            message_delay_level=DELAY_LEVELS,
            offsets_save_ms=2_000,
            transaction_timeout_ms=2_000,
            transaction_check_ms=2_000,
            transaction_op_delay_ms=500,
            lock_ttl_ms=LOCK_TTL_MS,
        )
        self.skew_ms = 0
        self._ahead_ms = 0  # of the broker's clock when it was last read
        self.is_steady = engine.chance.random() < 0.5  # like a node's clock; the core must also work with a jumping one
        self._steady = SteadyClock(
            name, wall=lambda: self.machine_ms() * 1_000_000, elapsed=lambda: int(engine.now_ms) * 1_000_000
        )
        self.life: Life | None = None
        self.calm = False  # the end: no more faults
        self._ids = 0
        self._begun = False
        self._rotten: list[tuple[HardFile, int, int]] = []
        engine.after(0, self.start)

    def clock_ms(self) -> int:
        """Return the broker's time, and note in the history by how much it was set since it was last read."""
        clock_ms = self._steady() if self.is_steady else self.machine_ms()
        ahead_ms = clock_ms - START_MS - int(self.engine.now_ms)
        if ahead_ms != self._ahead_ms:
            self.history.jumps.append(Jump(self.engine.now_ms, self.name, ahead_ms - self._ahead_ms))
            self._ahead_ms = ahead_ms
        return clock_ms

    def machine_ms(self) -> int:
        """Return the machine's clock."""
        return START_MS + int(self.engine.now_ms) + self.skew_ms

    def unique_id(self) -> str:
        self._ids += 1
        return f"{self.name}-{self._ids:08}"

    def jump(self, by_ms: int) -> None:
        """Set the machine's clock. The broker's own follows at once, within CHECK_MS, after SETTLE_MS or not at all."""
        self.skew_ms += by_ms
        self.clock_ms()
        self.engine.log(f"{self.name}: clock set by {by_ms} ms")

    def begin(self, topic: str) -> None:
        """Create the topic, like an operator; faults may happen from now on."""
        assert self.life is not None
        ext = CreateTopicHeader(topic, QUEUES, QUEUES, int(Perm.READ | Perm.WRITE)).to_ext()
        peer = Peer(PeerId(1 << 29), Host("10.0.0.8", 1))
        (send,) = self.life.core.handle(
            peer, RemotingCommand(RequestCode.UPDATE_AND_CREATE_TOPIC, ext), self.clock_ms()
        )
        assert send.command.code == ResponseCode.SUCCESS, send.command.remark
        self.life.core.files.finish()
        self._begun = True
        self.disk.rates = self.faults.disk

    def settle(self) -> None:
        """Stop all faults."""
        self.calm = True
        self.faults = Faults(lane=self.faults.lane)
        self.disk.rates = Rates()

    # The process.

    def start(self) -> None:
        """Start, or retry a little later. Records that the broker reports as damaged are restored from a copy."""
        if self.life is not None:
            return
        self.disk.rates = self.faults.disk if self._begun else Rates()
        try:
            self.life = Life(self)
        except PowerCut:
            self._ended("power cut in the start", power=self._takes_power())
        except StoreError as error:
            self._named(error)
            self._ended(f"start refused: {error}", power=False)
        except (OSError, MQError) as error:
            self._ended(f"start failed: {error}", power=False)
        else:
            self.engine.log(f"{self.name}: started, {self.life.store.recovery}")
            topics = self.life.core.topics.all()
            for topic in sorted(self.history.made.get(self.name, ())):
                if topic not in topics:
                    self.history.forgotten.append(f"{self.name} acknowledged topic {topic} and forgot it")

    def kill(self, *, power: bool) -> None:
        """End the process at once, in the middle of any call."""
        if self.life is not None:
            self._ended("killed", power=power)

    def stop(self, why: str = "stopped") -> None:
        """Stop cleanly, if the disk allows it."""
        life = self.life
        if life is None:
            return
        try:
            life.stop()
        except PowerCut:
            self._ended("power cut in the stop", power=self._takes_power())
        except (OSError, MQError) as error:
            self._ended(f"{why}, not cleanly: {error}", power=False)
        else:
            self._ended(why, power=False)

    def guard(self, life: "Life", act: Callable[[], None]) -> None:
        """Call act in the process, which may end it."""
        if self.life is life:
            try:
                act()
            except PowerCut:
                self._ended("power cut", power=self._takes_power())

    def _takes_power(self) -> bool:
        return self.engine.happens(POWER_SHARE)

    def _ended(self, why: str, *, power: bool) -> None:
        self.engine.log(f"{self.name}: {why}, {'power lost' if power else 'files as they are'}")
        life, self.life = self.life, None
        if life is not None:
            life.end()
        self.disk.stop(power=power)
        self.history.ends.append(Ended(self.engine.now_ms, self.name))
        if power:
            self.history.lost.append(Lost(self.engine.now_ms, self.name))
        if self.engine.happens(self.faults.rot):
            self._rot()
        self.engine.after(self.engine.between(100, 2_000), self.start)

    # Bit rot.

    def _rot(self) -> None:
        """Flip a bit of a body that is durable by the mark: above it, damage would be a torn tail."""
        self.disk.rates = Rates()
        mark = DurableMark(self.disk).mark
        flushed = 0 if mark is None else mark.flushed_offset
        bodies = [
            read
            for read in self.history.reads
            if read.place.broker == self.name and read.physical + len(read.body) < flushed and read.number is not None
        ]
        if not bodies or self._rotten:
            return
        read = self.engine.chance.choice(bodies)
        start = read.physical - read.physical % STORE.segment_size
        file = self.disk.files.get(f"commitlog/{start:020}")
        at = read.physical - start + 88  # the body of a record with IPv4 hosts
        if isinstance(file, HardFile) and bytes(file.data[at : at + len(read.body)]) == read.body:
            bit = 1 << self.engine.chance.randrange(8)
            file.data[at] ^= bit
            self._rotten.append((file, at, bit))
            self.engine.log(f"{self.name}: a bit rots at physical offset {read.physical}")

    def _named(self, error: Exception) -> None:
        if "damage" in str(error):
            assert self._rotten, f"the broker reported damage where there is none: {error}"
            self.restore(str(error))

    def restore(self, named: str) -> None:
        """Restore rotten records: the broker has reported them."""
        self.history.named.append(named)
        for file, at, bit in self._rotten:
            file.data[at] ^= bit
        self._rotten.clear()


class Life:
    """One process of a broker, from start to end."""

    def __init__(self, broker: SimBroker) -> None:
        self.broker, self.engine = broker, broker.engine
        self.store = broker.STORE(broker.disk, STORE)
        self.core = broker.CORE(
            broker.config,
            self.store,
            ConfigFileStore(broker.disk, gathers=True),
            unique_id=broker.unique_id,
            now_ms=broker.clock_ms(),
        )
        self.lane = Lane(self.core, self._decide)
        self.links: dict[int, Link] = {}
        self._waiting: deque[tuple[int, Callable[[], None]]] = deque()
        self._for_tables: list[tuple[int, Link, Send]] = []
        self._saving = False
        self._flushing = self._failed = False
        self._jobs: deque[tuple[Callable[[], Any], Callable[[], None] | None, float]] = deque()
        self._busy = False
        self._checkpointed = self.store.end_offset
        self._writing: Iterator[None] | None = None
        self._timer: Any = None
        self._timer_ms = 0.0
        self._to_namesrv: Link | None = None
        self._every(FLUSH_MS, self._flush)
        self._every(QUEUES_MS, self._write_queues)
        self._every(INDEX_MS, lambda: self.store.dispatch_index(50))
        self._every(broker.faults.checkpoint_ms, self._checkpoint)
        self._every(REGISTER_MS, self._register)
        self._every(TABLES_MS, self._save_tables)
        self._every(EXPIRE_MS, lambda: self.store.expire(broker.clock_ms()))  # checks whether there is room again
        self.engine.after(0, lambda: self._guarded(self._register))
        self._set_timer()
        broker.network.listeners[str(broker.address)] = self

    # The loop.

    def _guarded(self, act: Callable[[], Any]) -> None:
        self.broker.guard(self, act)

    def _every(self, interval_ms: float, act: Callable[[], Any]) -> None:
        def run() -> None:
            if self.broker.life is self:
                self._guarded(lambda: self._attempt(act))
                self.engine.after(interval_ms, run)

        self.engine.after(interval_ms, run)

    def _attempt(self, act: Callable[[], Any]) -> None:
        try:
            act()
        except (OSError, MQError) as error:
            self.engine.log(f"{self.broker.name}: a job failed: {error}")

    def end(self) -> None:
        """End the process."""
        self.store.abandon()
        self.broker.network.listeners.pop(str(self.broker.address), None)
        for link in list(self.links.values()):
            link.close()
        if self._to_namesrv is not None:
            self._to_namesrv.close()

    def stop(self) -> None:
        """Like BrokerNode.stop: finish disk jobs, save tables, close the store."""
        self.core.files.finish()
        while self._jobs and not self._failed:
            job, done, began_ms = self._jobs.popleft()
            job()
            self._note_flush(done, began_ms)
        try:
            self.core.stop(self.broker.clock_ms())
        finally:
            self.store.close()

    # Network.

    def accepted(self, link: Link) -> None:
        self.links[link.number] = link

    def closed(self, link: Link) -> None:
        def act() -> None:
            if self.links.pop(link.number, None) is not None:
                self._write(self.core.disconnected(PeerId(link.number)))

        self._guarded(act)

    def received(self, link: Link, data: bytes) -> None:
        self._guarded(lambda: self._received(link, data))

    def _received(self, link: Link, data: bytes) -> None:
        if link.number not in self.links:
            return
        peer, now_ms = Peer(PeerId(link.number), link.client_host), self.broker.clock_ms()
        try:
            if self.engine.happens(self.broker.faults.lane):
                position, replies, after_offset, sends, _, _ = self.lane.process(peer, data, 0, len(data), now_ms)
                assert position == len(data)
                if replies:
                    self._write_bytes(link, replies, after_offset)
                self._write(sends)
            else:
                self._write(self._decide(peer, first_command(data), now_ms))
        except (OSError, StoreError, RemotingError) as error:  # like ServerConnection
            self.engine.log(f"{self.broker.name}: connection failed: {error}")
            self._name(str(error))
            link.close()
        self._set_timer()

    def _decide(self, peer: Peer, command: RemotingCommand, now_ms: int) -> list[Send]:
        try:
            sends = self.core.handle(peer, command, now_ms)
        except OSError as error:
            return answer(peer, command, code=ResponseCode.SYSTEM_ERROR, remark=str(error))
        for send in sends:
            if send.command.remark and "damage" in send.command.remark:
                self._name(send.command.remark)
        return sends

    def _name(self, text: str) -> None:
        if "damage" in text:
            self.broker.restore(text)

    def _write(self, sends: list[Send]) -> None:
        for send in sends:
            link = self.links.get(send.peer)
            if link is None:
                continue
            if send.after_tables > self.core.files.settled:
                self._for_tables.append((send.after_tables, link, send))
                self._save_tables()
            else:
                self._write_bytes(link, encode_command(send.command), send.after_offset)

    def _write_bytes(self, link: Link, data: bytes, after_offset: int) -> None:
        if after_offset and self.core.config.sync_flush:
            self._after(after_offset, lambda: link.to_client(data))
        else:
            link.to_client(data)

    # Tables, like TableWriter: saved in their own thread, while the loop continues.

    def _save_tables(self) -> None:
        job = None if self._saving else self.core.files.begin_save()
        if job is None:
            return
        self._saving = True

        def save() -> None:
            failed: Exception | None = None
            try:
                job()
            except (OSError, MQError) as error:
                failed = error
            self.engine.after(0.1, lambda: self._guarded(lambda: self._tables_saved(failed)))

        self.engine.after(self.engine.between(0.1, self.broker.faults.sync_ms_max), lambda: self._guarded(save))

    def _tables_saved(self, error: Exception | None) -> None:
        self._saving = False
        files = self.core.files
        files.end_save(failed=error is not None)
        waiting, self._for_tables = self._for_tables, []
        for number, link, send in waiting:
            if error is not None:
                if send.command.is_response:
                    reply = RemotingCommand.reply_to(send.command, ResponseCode.SYSTEM_ERROR, f"not saved: {error}")
                    link.to_client(encode_command(reply))
            elif number <= files.settled:
                self._write_bytes(link, encode_command(send.command), send.after_offset)
            else:
                self._for_tables.append((number, link, send))
        if error is None:
            self._save_tables()  # a failed save is retried at the next change, or by the clock

    # Time.

    def _set_timer(self) -> None:
        if self.broker.life not in (self, None):
            return
        due_ms = self.engine.now_ms + min(max(0, self.core.next_tick_ms() - self.broker.clock_ms()), 60_000)
        if self._timer is not None:
            if self._timer_ms <= due_ms:
                return
            self._timer.cancel()
        self._timer_ms = due_ms
        self._timer = self.engine.after(due_ms - self.engine.now_ms, lambda: self._guarded(self._tick))

    def _tick(self) -> None:
        self._timer = None
        try:
            self._write(self.core.tick(self.broker.clock_ms()))
        except (OSError, MQError) as error:
            self.engine.log(f"{self.broker.name}: a tick failed: {error}")
            self._name(str(error))
        self.engine.after(1, self._set_timer)

    # The disk's thread, like Flusher.

    def _after(self, physical_offset: int, release: Callable[[], None]) -> None:
        if physical_offset <= self.store.flushed_offset:
            release()
            return
        self._waiting.append((physical_offset, release))
        self._ask()

    def _ask(self) -> None:
        if self._flushing or self._failed:
            return
        try:
            job = self.store.begin_flush()
        except StoreBroken as error:
            self._fail(error)
            return
        self._flushing = True
        self._put(job, self._flushed)

    def _flush(self) -> None:
        if self.store.end_offset > self.store.flushed_offset or self.store.fault is not None:
            self._ask()

    def _write_queues(self) -> None:
        """Write queue files; sometimes only a part, and the rest the next time."""
        writing = self._writing or self.store.write_queues_in_slices()
        self._writing = None
        for _ in writing:
            if self.engine.happens(0.2):
                self._writing = writing
                return

    def _checkpoint(self) -> None:
        if self.store.end_offset > self._checkpointed and self.store.fault is None:
            self._checkpointed = self.store.end_offset
            self._put(self.store.begin_checkpoint(index=self.engine.happens(0.5)), None)

    def _put(self, job: Callable[[], Any], done: Callable[[], None] | None) -> None:
        self._jobs.append((job, done, self.engine.now_ms))
        if not self._busy:
            self._next_job()

    def _next_job(self) -> None:
        self._busy = bool(self._jobs)
        if self._busy:
            self.engine.after(
                self.engine.between(0.1, self.broker.faults.sync_ms_max), lambda: self._guarded(self._run_job)
            )

    def _run_job(self) -> None:
        if not self._jobs:
            return
        job, done, began_ms = self._jobs.popleft()
        try:
            job()
        except (OSError, MQError) as error:
            if done is not None or self.store.fault is not None:
                failure = error
                self.engine.after(0.1, lambda: self._guarded(lambda: self._fail(failure)))
                return
            self.engine.log(f"{self.broker.name}: a job of the disk's thread failed: {error}")
        else:
            self._note_flush(done, began_ms)
            if done is not None:
                self.engine.after(0.1, lambda: self._guarded(done))
        self._next_job()

    def _note_flush(self, done: Callable[[], None] | None, began_ms: float) -> None:
        if done is not None:
            self.broker.history.flushed.append(Flushed(began_ms, self.engine.now_ms, self.broker.name))

    def _flushed(self) -> None:
        self._flushing = False
        while self._waiting and self._waiting[0][0] <= self.store.flushed_offset:
            self._waiting.popleft()[1]()
        if self._waiting:
            self._ask()

    def _fail(self, error: BaseException) -> None:
        """The log cannot be made durable: the node stops."""
        if not self._failed:
            self._failed = True
            self._waiting.clear()
            self.broker.stop(f"stopped, as the disk failed: {error}")

    # Name servers.

    def _register(self) -> None:
        if self._to_namesrv is None or not self._to_namesrv.is_open:
            self._to_namesrv = self.broker.network.connect(self.broker.namesrv, lambda data: None, lambda: None)
        if self._to_namesrv is not None:
            self._to_namesrv.to_server(encode_command(self.core.registration()))
