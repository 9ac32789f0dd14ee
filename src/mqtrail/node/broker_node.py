"""A broker on real sockets, files and time.

It adds to the core: the port, the clock and timer (BrokerShell), the flush thread, the background jobs (Upkeep), the
registration with name servers. Everything except syncing runs in the event loop's thread.
"""

import asyncio
import os
import ssl
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from mqtrail.broker import (
    USERS_FILE,
    Broker,
    BrokerConfig,
    Epoch,
    EpochFollower,
    Epochs,
    Follower,
    InSyncSet,
    MasterTerm,
)
from mqtrail.net import BindError, ConnectionPool, Log, Server, TlsClientConfig, TlsMode, join_address
from mqtrail.store import (
    MEMORY_SEGMENT_SIZE,
    MEMORY_TIMER_LOG_FILE_SIZE,
    CommitLogConfig,
    CommitLogStore,
    ConfigFileStore,
    Disk,
    MemoryDisk,
    MessageStore,
    NodeFetch,
    RealDisk,
)
from mqtrail.wire import (
    BodyError,
    BrokerEvent,
    BrokerEventKind,
    Host,
    InvalidParameter,
    RegisterBrokerResponseHeader,
    RemotingCommand,
    ResponseCode,
    UniqueIdFactory,
    sign,
)

from .acl_files import AclFolder, AclWatch
from .broker_shell import BrokerShell
from .clock import SteadyClock
from .config import NodeConfig
from .epoch_file import read_epochs, write_epochs
from .fast_port import FIRST_ID, PORT_STEP, FastPort
from .files import in_a_thread, unusable_files, warn_if_open_to_others
from .flusher import Flusher
from .ha_client import HaClient, SlaveParts
from .ha_server import HaServer
from .handing_back import take_back_offsets
from .in_time import InTime
from .inside import InsideCaller
from .registrar import Commands, Registrar
from .role_history import RoleHistory
from .route_keeper import RouteKeeper
from .table_copier import TableCopier
from .table_writer import TableWriter
from .upkeep import Upkeep, UpkeepTimes
from .watchdog import Watchdog

# A store in memory is for tests: its files are small because they use memory.
MEMORY_QUEUE_ENTRIES = 10_000
MEMORY_INDEX_SLOTS = 10_000
MEMORY_INDEX_ENTRIES = 40_000
STUCK_S = 5.0  # at a stop: how long to wait for a database that commits nothing
NEW_TOPICS_MAX = 10_000
HA_PORT_STEP = 1  # from the broker's port to haListenPort, if that is not set

log = Log()


@dataclass(frozen=True, slots=True)
class GroupPart:
    """What a broker needs to know of its group, in controller mode or DLedger mode.

    term, cut_at, differs, in_sync_due: in controller mode. term: as master; None: it is a slave. cut_at: the physical
    offset from which on the log is cut off at the start; None: all of it stays. differs: called with that offset when
    the master has something else from there on; the broker must then be started again. in_sync_due: called on a master
    when other replicas are in sync than the controller knows.

    ledger: in a DLedger group, the open disk and the open store of the member. Both stay open when the broker stops.
    """

    term: MasterTerm | None = None
    cut_at: int | None = None
    differs: Callable[[int], None] = lambda physical_offset: None
    in_sync_due: Callable[[], None] = lambda: None
    ledger: tuple[Disk, MessageStore] | None = None


class BrokerNode:
    """`bind`, `start`, `stop`, in this order, once each. The address is known after `bind`.

    folder: Apache's storePathRootDir; None: in memory. on_failure: called when the log can no longer be made durable.
    part: of a broker in a group.
    """

    def __init__(
        self,
        name: str,
        folder: Path | None,
        config: NodeConfig,
        on_failure: Callable[[BaseException], None],
        part: GroupPart | None = None,
    ) -> None:
        self._part = part or GroupPart()
        self.name = name
        self._folder = folder
        self._config = config
        self._on_failure = on_failure
        self._server: Server | None = None
        self._fast_server: Server | None = None
        self._shell: BrokerShell | None = None
        self._flusher: Flusher | None = None
        self._files: ConfigFileStore | None = None
        self._tables: TableWriter | None = None
        self._registrar: Registrar | None = None
        self._routes: RouteKeeper | None = None
        self._upkeep: Upkeep | None = None
        self._ha_server: HaServer | None = None
        self._ha_client: HaClient | None = None
        self._copier: TableCopier | None = None
        self._acl: AclWatch | None = None
        self._advertised = ""
        self._clock = SteadyClock(name, on_jump=self._clock_jumped)
        self._new_topics: set[str] = set()  # that a slave asked its master for at once
        self.epochs = Epochs()
        self.truncated: BrokerEvent | None = None  # what the start removed from the end of the log
        self._history = RoleHistory()  # of a broker that has one role
        self._disk: Disk | None = None
        self._in_time = InTime()
        self._reads_of_nodes: dict[str, InTime] = {}
        self.store: MessageStore | None = None
        self.core: Broker | None = None

    @property
    def port(self) -> int:
        """The port that the broker listens on."""
        assert self._server is not None, "bind comes first"
        return self._server.port

    @property
    def address(self) -> str:
        """host:port that is advertised to clients."""
        return join_address(self._advertised, self.port)

    def bind(self, host: str, port: int, advertised: str) -> None:
        """Take the port, open the store, make the core. BindError, StoreError: everything is released then.

        advertised: the IP address for clients, also written into records.
        """
        self._advertised = advertised
        self._server = Server(config=self._config.server)
        self._server.bind(host, port)
        if self._config.fast_port and port + PORT_STEP > 0:
            self._bind_fast(host, port + PORT_STEP)
        try:
            self._bind_ha(host, port)
            with unusable_files(f"broker {self.name}"):
                self._open()
        except BaseException:
            for server in (self._server, self._fast_server, self._ha_server):
                if server is not None:
                    server.release()
            raise

    @property
    def ha_port(self) -> int:
        """The port for slaves; without one, the port at which Apache's broker would have it."""
        return self.port + HA_PORT_STEP if self._ha_server is None else self._ha_server.port

    @property
    def table_copier(self) -> TableCopier | None:
        """On a slave: what copies the tables of its master."""
        return self._copier

    def _bind_ha(self, host: str, port: int) -> None:
        """Take the port for slaves, if this broker may have any. A slave takes it too: it may become master."""
        config = self._config
        if self._part.ledger is not None or (config.ha_port is None and not config.broker.broker_role):
            return
        ha_port = config.ha_port
        if ha_port is None:
            ha_port = port + HA_PORT_STEP if port else 0
        self._ha_server = HaServer(self.name, self._clock)
        self._ha_server.bind(host, ha_port)

    def _bind_fast(self, host: str, port: int) -> None:
        """Take the fast port too. Without it the broker still serves all clients without vipChannelEnabled."""
        server = Server(config=self._config.server, first_id=FIRST_ID)
        try:
            server.bind(host, port)
        except BindError as error:
            self._warn_no_fast_port(error)
        else:
            self._fast_server = server

    def _warn_no_fast_port(self, error: BindError) -> None:
        log.warning(
            "broker.no_fast_port",
            broker=self.name,
            found=str(error),
            remedy="free the port for clients with vipChannelEnabled, or set fast_port to false",
        )

    def _open(self) -> None:
        config = self._broker_config()
        if self._part.ledger is not None:
            disk, self.store = self._part.ledger
        else:
            disk = MemoryDisk() if self._folder is None else RealDisk(self._folder, apart=in_a_thread)
            self.store = self._open_store(disk, self._store_config(config))
        self._disk = disk
        if config.controller_mode:
            self._open_epochs(disk, self.store)
        if self._part.ledger is None:
            report_recovery(self.name, self.store)
        unique_ids = UniqueIdFactory(self._advertised, os.getpid(), int.from_bytes(os.urandom(4)), self._clock)
        files = self._files = ConfigFileStore(disk, gathers=True)
        try:
            home = self._config.acl_home or self._folder
            acl_files = None if home is None else AclFolder(home)
            self.core = Broker(
                config, self.store, files, unique_id=unique_ids.next, now_ms=self._clock(), acl_files=acl_files
            )
            if self._config.group_credentials is not None:
                self.core.access.trust(self._config.group_credentials)
            self._join_group(self.core, self.store)
            if acl_files is not None and self.core.access.reads_acl_files:
                self._acl = AclWatch(self.name, acl_files, self.core.access.load_acl)
                self._acl.load()
            files.finish()  # the first users are in their file before a client can ask for it
        except BaseException:
            if self._part.ledger is None:
                self.store.abandon()
            raise
        if self._folder is not None:
            warn_if_open_to_others(sorted((self._folder / "config").glob(f"{USERS_FILE}*")))
        for found in files.report:
            log.warning("tables.recovered", broker=self.name, report=found)
        self.core.own.report_to(self._own_damaged)
        for found in self.core.access.warnings():
            log.warning("access.open_question", broker=self.name, found=found)

    def _own_damaged(self, found: str) -> None:
        log.sparse.error("store.own_queue_damaged", broker=self.name, found=found)

    def _join_group(self, core: Broker, store: MessageStore) -> None:
        """Let the core know its part in the group."""
        core.replicas.epochs = self.epochs
        core.replicas.committed_offset = lambda: store.flushed_offset
        term, last = self._part.term, self.epochs.last
        if term is not None:
            start_offset = store.end_offset if last is None else last.start_offset
            core.replicas.in_sync = InSyncSet(term, start_offset, core.config.ha_late_max_ms)

    def _open_store(self, disk: Disk, config: CommitLogConfig) -> MessageStore:
        if not self._config.store_url:
            return CommitLogStore(disk, config)
        try:
            # It takes long to import, and is an extra.
            from mqtrail.store.sql import NodeDatabase, ReplicaDatabase, SqlStore, parse_node, parse_replica
        except ImportError as error:
            raise InvalidParameter(
                f"found no module {error.name}, expected SQLAlchemy for store_url: pip install 'mqtrail[pmq]'"
            ) from error
        nodes = []
        for name, url in map(parse_node, self._config.store_nodes.split()):
            reads = self._reads_of_nodes[name] = InTime()
            nodes.append(NodeDatabase(name, url, reads, InTime().begin))
        replicas = []
        for name, url in map(parse_replica, self._config.store_replicas.split()):
            thread = f"{name} replica"  # the name of a node has no space
            reads = self._reads_of_nodes[thread] = InTime()
            replicas.append(ReplicaDatabase(name, url, thread, reads.begin))
        return SqlStore(disk, self._config.store_url, config, self._in_time, nodes, replicas)

    def _open_epochs(self, disk: Disk, store: MessageStore) -> None:
        """Read the epochs of the log, and cut off what its master does not have. A master begins its epoch."""
        try:
            self.epochs = read_epochs(disk)
            cut_at, term = self._part.cut_at, self._part.term
            if cut_at is not None and cut_at < store.end_offset:
                size = store.end_offset - cut_at
                path = store.truncate(cut_at)
                log.warning("store.truncated", broker=self.name, physical_offset=cut_at, size=size, saved_as=path)
                self.truncated = BrokerEvent(
                    event=BrokerEventKind.TRUNCATED, from_offset=cut_at, to_offset=cut_at + size, detail=path
                )
            has_changed = self.epochs.cut(store.end_offset)
            if term is not None:
                has_changed |= self.epochs.begin(Epoch(term.epoch, store.end_offset))
            if has_changed:
                write_epochs(disk, self.epochs)
        except BaseException:
            store.abandon()
            raise

    def _broker_config(self) -> BrokerConfig:
        return replace(
            self._config.broker,
            broker_name=self.name,
            address=Host(self._advertised, self.port),
            ha_address=Host(self._advertised, self.ha_port),
            memory_size=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
            use_tls=self._config.tls.enable or self._config.server.tls.mode is TlsMode.ENFORCING,
        )

    def _store_config(self, config: BrokerConfig) -> CommitLogConfig:
        found = replace(
            self._config.store,
            store_host=config.address,
            message_size_max=config.message_size_max,
            message_delay_level=config.message_delay_level,
        )
        if self._folder is not None:
            return found
        return replace(
            found,
            segment_size=min(found.segment_size, MEMORY_SEGMENT_SIZE),
            queue_entries=min(found.queue_entries, MEMORY_QUEUE_ENTRIES),
            index_slots=min(found.index_slots, MEMORY_INDEX_SLOTS),
            index_entries=min(found.index_entries, MEMORY_INDEX_ENTRIES),
            timer_log_file_size=min(found.timer_log_file_size, MEMORY_TIMER_LOG_FILE_SIZE),
        )

    async def start(self, namesrvs: Sequence[str], own_namesrv: str | None = None) -> None:
        """Serve, and register with the name servers. own_namesrv: the one among them that uses our certificate."""
        assert self._server is not None, "bind comes first"
        assert self.core is not None
        assert self.store is not None
        assert self._files is not None
        self._flusher = self._make_flusher(self.core, self.store)
        self._tables = TableWriter(self._files, self.name)
        watchdog = Watchdog(self.core.stalls)
        self._upkeep = self._make_upkeep(self.store, self._flusher, watchdog)
        self._registrar = self._make_registrar(self.core, namesrvs, own_namesrv)
        self._shell = BrokerShell(
            self.core,
            clock=self._clock,
            hold=self._flusher.after if self.core.config.sync_flush or self.core.replicas.waits else None,
            hold_for_tables=self._tables.after,
            on_change=self._changed,
            on_stored=self._upkeep.appended if self._ha_server is None else self._stored,
            watchdog=watchdog,
            when_registered=self._registrar.when_registered,
        )
        self._shell.fetch = self._fetch
        self._server.application = self._shell
        if not self._is_in_group:  # there others give it its id
            await self._registrar.check_name(self.address, self.core.config.broker_id)
        await self._start_ha(self.core, self.store, self._flusher)
        await self._server.start()
        await self._start_fast(self._shell)
        await self._registrar.start()
        if namesrvs:
            self._routes = RouteKeeper(self.core, self._registrar.ask, self._clock, self._shell.write)
            self._routes.start()
        self._shell.start()
        self._upkeep.start()
        if not self._is_in_group:
            self._history.begin(self.core, broker_id=str(self.core.config.broker_id), epoch=None)
            self.events_wait()
        if self._acl is not None:
            self._acl.start()

    def _fetch(self, fetch: Callable[[], None], done: Callable[[], None]) -> None:
        """Fetch in the thread that reads from this database."""
        thread = self._reads_of_nodes[fetch.node] if isinstance(fetch, NodeFetch) else self._in_time
        thread.later(fetch, done)

    def _pool(self, core: Broker) -> ConnectionPool:
        """Return connections to other brokers of the cluster."""
        credentials = self._config.namesrv_credentials or core.access.own_credentials()
        return ConnectionPool(
            sign=None if credentials is None else partial(sign, credentials=credentials),
            tls=self._config.tls.context(),
        )

    def caller(self) -> InsideCaller:
        """Return a way to ask this broker from inside the process; `start` comes first."""
        assert self._shell is not None, "start comes first"
        assert self.core is not None
        credentials = self.core.access.own_credentials()
        return InsideCaller(
            self._shell,
            None if credentials is None else partial(sign, credentials=credentials),
            lambda: None if self.store is None else self.store.away,
        )

    def flush_soon(self) -> None:
        """Flush, unless a flush is under way."""
        if self._flusher is not None:
            self._flusher.ask()

    def _make_flusher(self, core: Broker, store: MessageStore) -> Flusher:
        config = core.config
        if config.ledger_mode:
            return Flusher(
                store,
                self._on_failure,
                late_ms=config.ledger_timeout_ms,
                late_code=ResponseCode.SYSTEM_ERROR,
                replication=core.replicas,
                flushes=False,
            )
        if not core.replicas.waits:
            return Flusher(store, self._on_failure, late_ms=config.sync_flush_timeout_ms)
        late_ms = config.slave_timeout_ms
        if config.sync_flush:
            late_ms = min(late_ms, config.sync_flush_timeout_ms)
        return Flusher(store, self._on_failure, late_ms=late_ms, replication=core.replicas, flushes=config.sync_flush)

    async def _start_ha(self, core: Broker, store: MessageStore, flusher: Flusher) -> None:
        """Serve slaves, or follow the master."""
        if core.config.is_slave:
            self._copier = TableCopier(self.name, core, store, self._pool(core), self._clock, self._tables_changed)
            parts = SlaveParts(
                self._copied,
                self._compare_logs,
                core.replicas.following,
                partial(self._follower, core.config, store),
                self._part.differs,
            )
            if not core.config.ledger_mode:
                self._ha_client = HaClient(store, flusher, core.config, self._clock, parts, self._config.ha_master)
                self._ha_client.start()
            self._copier.start()
        elif self._ha_server is not None:
            assert self._registrar is not None
            if not core.config.controller_mode:
                await take_back_offsets(core, store, self._pool(core), self._registrar.ask)
            self._ha_server.on_acked = self.slaves_moved
            await self._ha_server.start(store, core.replicas)

    def _follower(self, config: BrokerConfig, store: MessageStore, now_ms: int) -> Follower:
        """Return the slave's end of a new connection."""
        if not config.controller_mode:
            return Follower(store, config, now_ms)
        assert self._disk is not None
        return EpochFollower(
            store,
            self.epochs,
            config,
            now_ms,
            broker_id=config.broker_id,
            is_learner=config.async_learner,
            save=partial(write_epochs, self._disk),
        )

    async def _compare_logs(self) -> None:
        """Compare the last record with the master's. Epochs say more, if there are any."""
        assert self._copier is not None
        if self.epochs.last is None:
            await self._copier.compare_logs()

    def follow(self, master: str, ha_address: str) -> None:
        """In controller mode: copy from this master."""
        assert self._copier is not None
        assert self._ha_client is not None
        self._copier.follow(master)
        self._ha_client.follow(ha_address)

    def appeared(self, queues: Sequence[tuple[str, int]]) -> None:
        """In a DLedger group: entries were committed, and these queues have grown."""
        if self._shell is None or self.core is None or self._upkeep is None or self._flusher is None:
            return  # it starts, and will read all of them
        now_ms = self._clock()
        self._ask_for_new({topic for topic, _ in queues if topic not in self.core.topics})
        self.core.appeared(queues, now_ms)
        self._flusher.replicated()
        self._upkeep.appended()
        self._shell.write(self.core.settle(now_ms))
        self._shell.set_timer()

    def _ask_for_new(self, topics: set[str]) -> None:
        """On a slave: copy the tables of the master now if there are messages of topics that it does not know, since it
        may be master next. Once for each topic."""
        new = topics - self._new_topics
        if new and self._copier is not None and len(self._new_topics) < NEW_TOPICS_MAX:
            self._new_topics |= new
            self._copier.hurry()

    @property
    def _is_in_group(self) -> bool:
        """Whether a group chooses the role of this broker."""
        config = self._config.broker
        return config.controller_mode or config.ledger_mode

    def _write_stop(self, *, leaves: bool) -> None:
        if leaves and self._shell is not None and self.core is not None and not self._is_in_group:
            self._history.stopping(self.core)

    def events_wait(self) -> None:
        """BrokerEvents were added: a master writes them now, a slave sends them to its master."""
        if self._copier is not None:
            self._copier.hurry()
        elif self._shell is not None:
            self._shell.set_timer()

    def register_again(self) -> None:
        """Tell name servers the broker's role once more, and learn from them who is master now."""
        if self._registrar is not None:
            self._registrar.topics_changed(None)

    def slaves_moved(self) -> None:
        """Slaves have reported, connected or gone, or other replicas are in sync."""
        assert self._flusher is not None
        self._flusher.replicated()
        if self.wanted_in_sync() is not None:
            self._part.in_sync_due()

    def wanted_in_sync(self) -> frozenset[int] | None:
        """Return the replicas that are in sync; None: the controller knows them."""
        return None if self.core is None else self.core.replicas.review(self._clock())

    def _stored(self) -> None:
        """Messages may have been stored."""
        if self._upkeep is not None:
            self._upkeep.appended()
        if self._ha_server is not None:
            self._ha_server.appended()

    def _copied(self) -> None:
        """Records of the master were appended."""
        assert self.core is not None
        assert self._upkeep is not None
        assert self._shell is not None
        self.core.copied(self._clock())
        self._upkeep.appended()
        self._shell.set_timer()

    def _tables_changed(self) -> None:
        """Tables of the master were taken over."""
        assert self._shell is not None
        self._shell.set_timer()

    def _make_upkeep(self, store: MessageStore, flusher: Flusher, watchdog: Watchdog) -> Upkeep:
        config = self._config
        return Upkeep(
            store,
            flusher,
            UpkeepTimes(
                flush_ms=config.flush_interval_ms,
                expire_ms=config.expire_interval_ms,
                index_ms=config.index_interval_ms,
                slice_ms=config.index_stroke_ms,
            ),
            expires=self._folder is not None,
            clock=self._clock,
            watchdog=watchdog,
        )

    def _make_registrar(self, core: Broker, namesrvs: Sequence[str], own_namesrv: str | None) -> Registrar:
        credentials = self._config.namesrv_credentials or core.access.own_credentials()
        return Registrar(
            self.name,
            namesrvs,
            Commands(core.registration, core.unregistration, core.topic_registration),
            interval_ms=core.config.register_ms,
            timeout_ms=self._config.register_timeout_ms,
            sign=None if credentials is None else partial(sign, credentials=credentials),
            tls=self._namesrv_tls(namesrvs, own_namesrv),
            on_registered=self._registered,
        )

    async def _start_fast(self, shell: BrokerShell) -> None:
        if self._fast_server is None:
            return
        self._fast_server.application = FastPort(shell, self._clock)
        try:
            await self._fast_server.start()
        except BindError as error:
            self._warn_no_fast_port(error)
            self._fast_server = None

    def _namesrv_tls(self, namesrvs: Sequence[str], own: str | None) -> dict[str, ssl.SSLContext]:
        """Return the TLS context per name server: the client settings, or those that our own name server requires."""
        client, server = self._config.tls, self._config.server.tls
        context = client.context()
        if context is not None:
            return dict.fromkeys(namesrvs, context)
        if own is None or server.mode is not TlsMode.ENFORCING:
            return {}
        # The peer is this node, so there is nothing to verify. If it requires a client certificate, it accepts its own.
        mutual = TlsClientConfig(
            enable=True,
            verify=False,
            cert_path=server.cert_path,
            key_path=server.key_path,
            key_password=server.key_password,
        )
        context = mutual.context()
        return {} if context is None else {own: context}

    def _registered(self, reply: RemotingCommand) -> None:
        assert self.core is not None
        if self._copier is not None and not self.core.config.controller_mode:
            header = RegisterBrokerResponseHeader.from_ext(reply.ext)
            self._copier.follow(header.master_addr)  # first: the logs are compared before the other one connects
            if self._ha_client is not None:
                self._ha_client.follow(header.ha_server_addr)
        try:
            self.core.registered(reply.body, self._clock())
        except BodyError as error:
            log.sparse.warning("broker.registration_unreadable", broker=self.name, found=str(error))
        self._changed()

    def _clock_jumped(self, by_ms: int) -> None:
        if self.core is not None:
            self.core.clock_jumps["forward" if by_ms > 0 else "back"] += 1

    def _changed(self) -> None:
        assert self.core is not None
        if self._tables is not None:
            self._tables.save_changes()
        if self.core.topics_changed and self._registrar is not None:
            self._registrar.topics_changed(self.core.take_changed_topics())
        if self._routes is not None:
            self._routes.fetch_new()
        self._stored()

    async def stop(self, *, leaves: bool = True) -> None:
        """Unregister, answer held requests, flush and close everything. Also cleans up after a failed start.

        leaves False: the same broker is started again at once, and clients wait for that. So it does not unregister,
        and records that are not indexed yet are left to that start.
        """
        self._write_stop(leaves=leaves)
        if self._acl is not None:
            self._acl.stop()
        if self._routes is not None:
            await self._routes.stop()
        for part in (self._copier, self._ha_client):
            if part is not None:
                await part.stop()
        if self._registrar is not None:
            await self._registrar.stop(leaves=leaves)
        if self._upkeep is not None:
            self._upkeep.stop()
        if self._shell is not None:
            self._shell.stop()
        if self._tables is not None:
            await self._tables.stop()
        if self._flusher is not None:
            await self._flusher.stop(STUCK_S if self._config.store_url else None)
        for server in (self._fast_server, self._server):
            if server is not None:
                await server.stop()
        if self._ha_server is not None:
            await self._ha_server.stop()
        if self.core is not None and self.store is not None:
            close = partial(self._close, self.core, self.store, finishes_index=leaves)
            if leaves:
                close()
            else:  # its disk may take long, and heartbeats to the controllers go on meanwhile
                await asyncio.to_thread(close)
            self.core = self.store = None

    def _close(self, core: Broker, store: MessageStore, *, finishes_index: bool) -> None:
        try:
            core.stop(self._clock())
        finally:
            if self._part.ledger is None:
                store.close(finishes_index=finishes_index)


def report_recovery(name: str, store: MessageStore) -> None:
    """Log what a start found in the files, if it is worth a look."""
    if not store.recovery.is_plain:
        log.warning("store.recovered", broker=name, report=str(store.recovery))
    if store.timers.report is not None:
        log.warning("timers.recovered", broker=name, report=store.timers.report)
