"""A broker of a DLedger group: the group's members elect the one that is master.

    the member leads, and all that earlier leaders may have committed is visible -> start the broker as master
    it leads no longer, or in a later term                                       -> stop it, start it as slave
    another member leads, or none                                                -> the broker is a slave

As in controller mode, a change of the role ends one BrokerNode and begins the next one in this process. The member, its
store and the log stay open; other members never wait for a change of this broker's role. From the moment at which the
member leads no longer, its store takes nothing and reports nothing as committed, until the broker that was master has
stopped: the places of its last messages may get those of another leader.

A slave copies topics, groups and offsets of the master that its name server knows. When another member leads, or one
follows again, brokers register a few times more.

Source: DLedgerRoleChangeHandler, apache/rocketmq broker/; DLedgerCommitLog, store/.
"""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Final

from mqtrail.broker import SLAVE, SYNC_MASTER, LedgerState, Replica, ledger_number
from mqtrail.net import Log
from mqtrail.raft import NotLeader, RaftBusy
from mqtrail.raft.dledger import LedgerConfig
from mqtrail.store import MessageStore, RealDisk, StoreError, StoreFull
from mqtrail.store.dledger import FIRST_TOPIC, LedgerStore
from mqtrail.wire import (
    BrokerEvent,
    BrokerEventKind,
    Host,
    InvalidParameter,
    MessageSysFlag,
    MQError,
    ServiceNotAvailable,
    SystemBusy,
    address_matcher,
    encode_record,
    parse_peers,
)

from .broker_node import BrokerNode, GroupPart, report_recovery
from .clock import wall_clock_ms
from .config import NodeConfig
from .files import in_a_thread, unusable_files
from .group_broker import GroupBroker
from .ledger_node import LedgerNode
from .role_history import RoleHistory

START_WAIT_S: Final = 15.0  # after which a start goes on without a leader; the broker serves as a slave then
RETRY_S: Final = 0.2  # pause after a failure
IDLE_S: Final = 1.0  # between two looks without an event
ROUTE_WAITS_S: Final = (0.5, 2.0, 5.0)  # after a change in the group: when brokers register once more
FIRST_TERM: Final = 1
NO_HOST: Final = bytes(8)

log = Log()


def first_body(physical_offset: int) -> bytes:
    """Return the record of a leader's first entry: a rolled back message, so that Apache's member dispatches it to no
    queue either. Its entry makes those of earlier terms committable."""
    return encode_record(
        FIRST_TOPIC,
        b"-",
        b"",
        queue_id=0,
        queue_offset=0,
        physical_offset=physical_offset,
        flag=0,
        sys_flag=int(MessageSysFlag.TRANSACTION_ROLLBACK),
        born_timestamp_ms=wall_clock_ms(),
        born_host=NO_HOST,
        store_timestamp_ms=wall_clock_ms(),
        store_host=NO_HOST,
        reconsume_times=0,
        prepared_transaction_offset=0,
    )


class LedgerBroker(GroupBroker):
    """Used like BrokerNode: `bind`, `start`, `stop`, once each. core: None while it does not serve."""

    def __init__(
        self, name: str, folder: Path | None, config: NodeConfig, on_failure: Callable[[BaseException], None]
    ) -> None:
        """InvalidParameter: a member in memory would forget its vote."""
        if folder is None:
            raise InvalidParameter(
                "found ledger_mode (enableDLegerCommitLog) without a data folder, expected one: pass --data"
            )
        super().__init__(name, folder, config, on_failure)
        self._peers = parse_peers(self._broker_config.ledger_peers)
        self._disk: RealDisk | None = None
        self._ledger_store: LedgerStore | None = None
        self._member: LedgerNode | None = None
        self._term: int | None = None  # in which the store takes appends
        self._history = RoleHistory()
        self._served: int | None = None  # the term in which the broker is master; None: a slave
        self._leader: str | None = None  # that was seen last
        self._followers: frozenset[str] = frozenset()  # of this member, seen last
        self._route_timers: list[asyncio.TimerHandle] = []
        self._sending: asyncio.Handle | None = None  # of appended entries
        self._showing: asyncio.Handle | None = None  # of more committed entries
        self._is_paused = False  # another thread uses the store: nothing becomes visible meanwhile
        self._failing = ""

    @property
    def broker_id(self) -> int:
        """The id of this broker while it does not lead."""
        return ledger_number(self._broker_config.ledger_self_id) + 1

    @property
    def store(self) -> MessageStore | None:
        """The store of the member."""
        return self._ledger_store

    @property
    def member(self) -> LedgerNode:
        """The member of the group; `start` comes first."""
        assert self._member is not None, "start comes first"
        return self._member

    # Start and stop.

    def bind(self, host: str, port: int, advertised: str) -> None:
        """Take the port, open the log. BindError, StoreError: everything is released then."""
        self._take_port(host, port, advertised)
        try:
            with unusable_files(f"broker {self.name}"):
                self._open()
        except BaseException:
            self._release()
            raise

    def _open(self) -> None:
        broker = self._broker_config
        disk = RealDisk(self._folder, apart=in_a_thread)
        config = replace(
            self._config.store,
            store_host=Host(self._advertised, self.port),
            message_size_max=broker.message_size_max,
            message_delay_level=broker.message_delay_level,
        )
        self._disk = disk
        self._ledger_store = LedgerStore(
            disk, config, self_id=broker.ledger_self_id, group=broker.ledger_group or self.name
        )
        report_recovery(self.name, self._ledger_store)

    def consensus(self) -> LedgerConfig:
        """Return the settings of the member."""
        broker = self._broker_config
        return LedgerConfig(
            self_id=broker.ledger_self_id,
            members=tuple(self._peers),
            group=broker.ledger_group or self.name,
            waits_for_flush=broker.sync_flush,
            preferred=broker.preferred_members,
        )

    async def start(self, namesrvs: Sequence[str], own_namesrv: str | None = None) -> None:
        """Join the group, and serve once it has a leader; after START_WAIT_S without one, as a slave.

        BindError: the port of the member. Errors of BrokerNode, if it is started meanwhile.
        """
        store = self._ledger_store
        assert store is not None, "bind comes first"
        broker, config = self._broker_config, self._config
        self._namesrvs, self._own_namesrv = namesrvs, own_namesrv
        self._serves = serves = asyncio.get_running_loop().create_future()
        self._member = LedgerNode(
            self.consensus(),
            self._peers,
            store.ledger,
            first_body,
            host=self._host,
            server=config.server,
            tls=config.tls,
            on_change=self._member_changed,
        )
        self._member.on_cut = self._was_cut
        self._member.admit(address_matcher(broker.slave_addresses or "*"))
        await self._member.start()
        self._tasks = [asyncio.create_task(one) for one in (self._run(), self._watch())]
        try:
            async with asyncio.timeout(START_WAIT_S):
                await asyncio.shield(serves)
        except TimeoutError:
            log.warning(
                "broker.waits_for_leader",
                broker=self.name,
                members=broker.ledger_peers,
                remedy="start the other members of the group; until a majority runs, nothing can be sent",
            )
            self._wake.set()
            await serves

    async def stop(self) -> None:
        """Stop the broker, then leave the group. Also cleans up after a failed start."""
        await self._end_tasks()
        for timer in (*self._route_timers, self._sending, self._showing):
            if timer is not None:
                timer.cancel()
        node, self._node = self._node, None
        try:
            if node is not None:
                await node.stop()
        finally:
            self._release()
            if self._member is not None:
                await self._member.stop()
            store, self._ledger_store = self._ledger_store, None
            if store is not None:
                store.step_down()
                store.close()

    async def _watch(self) -> None:
        """Stop the node if the log can no longer be made durable."""
        await self.member.failed.wait()
        assert self.member.failure is not None
        self._on_failure(self.member.failure)

    # The member.

    def _member_changed(self) -> None:
        """After each step of the member: first of all take nothing more if it does not lead."""
        store = self._ledger_store
        if store is None or self._member is None:
            return
        self._check_term(store)
        if not store.is_current:
            self._show()
        member = self._member.member
        member.is_full = store.is_full
        if self._wanted() != self._served or (self._node is None and self._follows_another()):
            self._wake.set()
        if self._follows_another():
            self._history.saw(member.leader or "", "", member.term)
        # A former leader that was stopped may register as master once more before it notices.
        followers, self._followers = self._followers, member.followers
        if member.leader != self._leader or not self._followers <= followers:
            self._leader = member.leader
            self._register_soon()

    def _check_term(self, store: LedgerStore) -> None:
        """Take nothing more, and show nothing more, if this member leads no longer, or in a later term."""
        if self._term is not None and not self._leads_in(self._term):
            self._term = None
            store.step_down()
            self._wake.set()

    def _leads_in(self, term: int) -> bool:
        member = self.member.member
        return member.is_leader and member.term == term

    def _wanted(self) -> int | None:
        """Return the term in which the broker should be master now; None: it should be a slave."""
        member = self.member.member
        return member.term if member.is_ready else None

    def _follows_another(self) -> bool:
        return self.member.member.leader not in (None, self.member.config.self_id)

    def _show(self) -> bool:
        """Make some committed entries visible; go on soon if there are more. Return whether that works.

        A member that cannot is no leader: another one may have space for its queues.
        """
        if self._showing is not None:
            self._showing.cancel()
            self._showing = None
        store = self._ledger_store
        if store is None:
            return False
        self._check_term(store)
        if self._is_paused:
            return True
        loop = asyncio.get_running_loop()
        committed = store.committed_offset
        try:
            grown = store.advance()
        except (StoreFull, OSError) as error:
            log.sparse.error("broker.queues_not_written", broker=self.name, error=str(error), remedy="free space")
            self._showing = loop.call_later(RETRY_S, self._show)
            if self.member.member.is_leader:
                self.member.resign(f"its queues cannot be written: {error}")
            return False
        except StoreError as error:
            self._on_failure(error)
            return False
        if store.committed_offset == committed:
            return True  # it stepped down
        if self._node is not None:
            self._node.appeared(grown)
        if not store.is_current:
            self._showing = loop.call_soon(self._show)
        return True

    # What the store asks of the leader.

    def check(self, count: int) -> None:
        """Refusal: so many more entries cannot be appended now."""
        assert self._ledger_store is not None
        try:
            if self._term is None or not self._leads_in(self._term):
                raise NotLeader(self.member.member.leader)
            self.member.member.check_room(count)
        except NotLeader as error:
            raise ServiceNotAvailable(f"{error}: refresh the route") from error
        except RaftBusy as error:
            raise SystemBusy(str(error)) from error

    def appended(self) -> None:
        """Send appended entries in the next turn of the loop, together with those of other requests."""
        if self._sending is None:
            self._sending = asyncio.get_running_loop().call_soon(self._send)

    def _send(self) -> None:
        self._sending = None
        self.member.advance()

    # The broker.

    async def _run(self) -> None:
        serves = self._serves
        assert serves is not None
        began_s = asyncio.get_running_loop().time()
        while True:
            wait_s = IDLE_S
            try:
                is_late = asyncio.get_running_loop().time() - began_s >= START_WAIT_S
                await self._step(is_late=is_late)
            except (MQError, OSError) as error:
                if not serves.done():
                    serves.set_exception(error)  # `start` raises it; later errors are logged, and tried again
                    return
                self._report(error)
                wait_s = RETRY_S
            except Exception:  # a fault must not end the broker's part in the group
                log.sparse.exception("broker.group_failed", broker=self.name)
                wait_s = RETRY_S
            else:
                self._failing = ""
            if self._node is not None and not serves.done():
                serves.set_result(None)
            with suppress(TimeoutError):
                async with asyncio.timeout(wait_s):
                    await self._wake.wait()
            self._wake.clear()

    def _report(self, error: Exception) -> None:
        if str(error) != self._failing:
            self._failing = str(error)
            log.warning("broker.role_not_changed", broker=self.name, found=str(error), remedy="none; it is retried")

    async def _step(self, *, is_late: bool) -> None:
        """Start the broker in its present role, if it has another one. is_late: also without a leader."""
        wanted = self._wanted()
        if self._node is None and wanted is None and not is_late and not self._follows_another():
            return  # this member may be about to lead
        if self._node is None or wanted != self._served or (self._served is not None and self._term is None):
            async with self._changing:
                await self._serve(wanted)

    async def _serve(self, term: int | None) -> None:
        """Start the broker as master of a term or as slave."""
        store = self._ledger_store
        assert store is not None
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        node, self._node = self._node, None
        if node is not None:
            self._term = None  # nothing more of a broker that stops counts as committed
            store.step_down()
            core = node.core
            await self._stop_node(node)
            if core is not None:
                self._history.leave(core)
        self._served = None
        store.follow()
        if term is not None and not await self._catch_up(term):
            term = None
        store.reopen_timers()
        if term is not None:
            store.lead(self)
            self._term = term
        await self._start_node(store, term)
        self._served = term
        self._show()
        log.info(
            "broker.role_changed",
            broker=self.name,
            broker_id=0 if term is not None else self.broker_id,
            role="slave" if term is None else "master",
            term=self.member.member.term,
            duration_ms=round((loop.time() - began_s) * 1000),
        )

    async def _stop_node(self, node: BrokerNode) -> None:
        """Stop the broker of the last role. What cannot be saved was not committed, or is saved by the next one."""
        try:
            await node.stop(leaves=False)
        except (MQError, OSError) as error:
            log.warning("broker.role_left", broker=self.name, found=str(error), remedy="none; tables are copied again")

    async def _catch_up(self, term: int) -> bool:
        """Show all that is committed; return whether the member still leads then."""
        store = self._ledger_store
        assert store is not None
        while self._wanted() == term:
            if store.is_current:
                return True
            if not self._show():
                return False
            await asyncio.sleep(0)
        return False

    async def _start_node(self, store: LedgerStore, term: int | None) -> None:
        assert self._disk is not None
        role, broker_id = (SLAVE, self.broker_id) if term is None else (SYNC_MASTER, 0)
        broker = replace(self._broker_config, broker_role=role, broker_id=broker_id, loses_unflushed=True)
        config = replace(self._config, broker=broker, ha_master="", ha_port=None)
        node = BrokerNode(self.name, self._folder, config, self._on_failure, GroupPart(ledger=(self._disk, store)))
        self._release()
        self._is_paused = True
        try:
            await asyncio.to_thread(node.bind, self._host, self.port, self._advertised)
        finally:
            self._is_paused = False
        try:
            assert node.core is not None
            node.core.replicas.ledger = self._state
            node.core.replicas.role_changes = self._role_changes.begin(is_master=term is not None)
            if term is not None:
                node.core.replicas.members = self._others
                node.core.replicas.committed_offset = self._committed_in(store, term)
            await node.start(self._namesrvs, self._own_namesrv)
        except BaseException:
            await self._stop_node(node)
            raise
        self._node = node
        node.appeared(())
        self._history.begin(node.core, broker_id=self._broker_config.ledger_self_id, epoch=term, reason=self._why(term))
        node.events_wait()

    def _why(self, term: int | None) -> str:
        """Return why this member was elected, in the words of a controller; "": not known, or it was not."""
        before = self._history.master_before(term)
        if term is None:
            return ""
        if not before:
            return "first" if term == FIRST_TERM else ""
        return "connection_closed" if before in self.member.disconnected else ""

    def _was_cut(self, path: str, first: int, end: int) -> None:
        """Write that the end of the log was removed, which the leader does not have."""
        event = BrokerEvent(
            event=BrokerEventKind.TRUNCATED,
            broker_id=self._broker_config.ledger_self_id,
            from_offset=first,
            to_offset=end,
            detail=path,
        )
        core = self.core
        if core is None or core.events is None:
            self._history.note(event)
        else:
            core.events.add(event, wall_clock_ms())
            assert self._node is not None
            self._node.events_wait()

    def _committed_in(self, store: LedgerStore, term: int) -> Callable[[], int]:
        """Return a function that returns the committed offset of the entries that this member wrote as leader of term.

        The offset no longer moves once the term is over: entries of another leader may take the places of this one's.
        """
        committed = store.flushed_offset

        def offset() -> int:
            nonlocal committed
            if self._term == term:
                committed = store.flushed_offset
            return committed

        return offset

    def _state(self) -> LedgerState:
        """Return what metrics show of the member."""
        member, ledger = self.member.member, self.member.ledger
        uncommitted_size = ledger.end_position - ledger.position_behind(ledger.committed_index)
        return LedgerState(member.term, member.election_count, uncommitted_size)

    def _others(self) -> list[Replica]:
        """Return how far the other members are."""
        store, member = self._ledger_store, self.member.member
        if store is None or not member.is_leader:
            return []
        found = []
        for name in member.config.peers:
            index = member.match_index(name)
            position = store.ledger.position_behind(index) if index >= 0 else -1
            found.append(Replica(self._peers[name], position, position, index >= store.ledger.committed_index >= 0, 0))
        return found

    def _register_soon(self) -> None:
        """Register a few times more: a slave learns so who is master now, which needs a moment to register; the master
        replaces what another one may have registered."""
        for timer in self._route_timers:
            timer.cancel()
        loop = asyncio.get_running_loop()
        self._route_timers = [loop.call_later(wait_s, self._register_again) for wait_s in ROUTE_WAITS_S]

    def _register_again(self) -> None:
        if self._node is not None:
            self._node.register_again()
