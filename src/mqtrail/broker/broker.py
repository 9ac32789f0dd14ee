"""The front of the broker: passes requests to their handlers, and runs periodic work.

    bytes -> net -> wire -> Broker.handle(peer, command, now_ms) -> [Send] -> node -> net

It uses no socket, clock, thread or randomness. The shell calls `handle` for every command of a peer, `tick` at
`next_tick_ms`, and `disconnected` when a connection closes. It writes the returned Sends, each after the log is flushed
to its after_offset. One thread makes all calls.

Source: BrokerController, NettyRemotingAbstract.processRequestCommand, apache/rocketmq broker/ and remoting/.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import partial
from typing import Final

from mqtrail.store import ConfigFileStore, MemoryDisk, MessageStore, StoreAway, StoreError
from mqtrail.wire import (
    Handler,
    InvalidParameter,
    KvTable,
    MQError,
    Peer,
    PeerId,
    Refusal,
    RemotingCommand,
    RequestCodeNotSupported,
    ResponseCode,
    Send,
    SerializeType,
    SystemBusy,
    WorkParts,
    answer,
    answer_error,
    answer_failure,
)

from .access import AclFiles
from .bounds import BODY_SIZE_MAX, LINES_SIZE_MAX
from .concerns import Concerns
from .config import BrokerConfig
from .messages import FastFailure
from .pop import HeldPop
from .requests import BODY_SIZES, BOUNDED_CODES, MASTER_CODES, PERMISSIONS, READ_CODES, REQUESTS, WAITS
from .state import load_state
from .tables import HeldPull, register_command, register_topic_command, unregister_command

AWAY_MS: Final = 500  # until delayed work is looked at again while the store is away
COPIED_SWEEP_MS: Final = 20  # on a slave, from an append to the answer of held pulls
HELD_SWEEP_MS: Final = 5_000  # interval at which held pulls are served even if no arrived message matched their tags


class Broker:
    """One broker. files: stores its tables; unique_id: makes a UNIQ_KEY for messages without one."""

    def __init__(
        self,
        config: BrokerConfig,
        store: MessageStore,
        files: ConfigFileStore | None = None,
        *,
        unique_id: Callable[[], str],
        now_ms: int,
        acl_files: AclFiles | None = None,
    ) -> None:
        files = ConfigFileStore(MemoryDisk()) if files is None else files
        state = load_state(config, store, files, acl_files, unique_id, now_ms, PERMISSIONS, BOUNDED_CODES)
        # For the shell, the lane and metrics.
        self.config, self.store, self.files, self.access = config, store, files, state.access
        self.topics, self.groups, self.offsets = state.topics, state.groups, state.offsets
        self.clients, self.filters, self.held = state.clients, state.filters, state.held
        self.limits = state.limits
        self.stats, self.trace, self.events, self.writer = state.stats, state.trace, state.events, state.writer
        self.locks, self.jobs, self.replicas, self.own = state.locks, state.jobs, state.replicas, state.own
        concerns = self._concerns = Concerns(state, self._serve_held_pop, self._settings_changed)
        self.send, self.pop, self.transactions = concerns.send, concerns.pop, concerns.transactions
        self.delays, self.timers = concerns.delays, concerns.timers
        self.master_tables = concerns.master_tables
        self.fast_failure = FastFailure(config, WAITS)
        self.stalls: dict[str, list[int]] = {}  # work that blocked the loop -> count, ms, ms of CPU; set by the shell
        self.clock_jumps = {"forward": 0, "back": 0}  # of the machine's clock, reported by the shell
        self.parts = WorkParts()
        self.settings_version = 1  # increases when request 25 changes settings, to invalidate copies
        self._seen_ms = now_ms
        self._access_version, self._access_changed_ms = self.access.version, now_ms
        self._next_save_ms = now_ms + config.offsets_save_ms
        self._next_sweep_ms: int | None = None
        self._handlers = {code: row.handler(concerns) for code, row in REQUESTS.items()}
        self._refused = _refused_codes(config)

    def _settings_changed(self, names: frozenset[str], now_ms: int) -> None:
        self.settings_version += 1
        if names & {"permission", "auto_create_topic"}:
            self.topics.settings_changed(now_ms)

    # Commands.

    def connected(self, peer: Peer) -> None:
        """Report a new connection. Nothing is known about it before its first request."""

    def handle(self, peer: Peer, command: RemotingCommand, now_ms: int) -> list[Send]:
        """Serve a command; return the commands to write, to this peer and to others."""
        if command.is_response:
            return self._concerns.forwards.answered(peer, command)
        if len(command.body) > LINES_SIZE_MAX and (large := _too_large(command)) is not None:
            return self._refuse(peer, command, large)
        if self.access.on and (refusal := self.access.check(peer, command)) is not None:
            return self._refuse(peer, command, refusal)
        if command.code in self._refused:
            return self._refuse(peer, command, _not_on_a_slave(self.config))
        self.files.dependency = 0
        sends = self._serve(peer, command, lambda: self._handler(command)(peer, command, now_ms))
        return self.files.after_tables(sends + self._settle(now_ms))

    def _handler(self, command: RemotingCommand) -> Handler:
        handler = self._handlers.get(command.code)
        if handler is None:
            raise RequestCodeNotSupported(f" request type {command.code} not supported")
        return handler

    def _serve(self, peer: Peer, request: RemotingCommand, act: Callable[[], list[Send]]) -> list[Send]:
        """Run a handler, and turn an error into an answer."""
        try:
            sends = act()
        except MQError as error:
            sends = answer_error(peer, request, error)
        except StoreError as error:
            sends = answer(peer, request, code=ResponseCode.SYSTEM_ERROR, remark=str(error))
        return self._as_asked(peer, request, sends)

    def _serve_later(self, peer: Peer, request: RemotingCommand, act: Callable[[], list[Send]]) -> list[Send]:
        """Serve a request that waited. An unexpected exception is answered: it must not fail the work around it."""

        def failed(error: Exception) -> list[Send]:
            return self._as_asked(peer, request, answer_failure(peer, request, error))

        return self.parts.run(f"request {request.code}", lambda: self._serve(peer, request, act), failed) or []

    def _refuse(self, peer: Peer, request: RemotingCommand, refusal: Refusal) -> list[Send]:
        """Answer a refusal without raising it: the traceback would lead back to the frame that holds it, and this
        cycle would keep the request until the next garbage collection."""
        return self._as_asked(peer, request, answer_error(peer, request, refusal))

    def _as_asked(self, peer: Peer, request: RemotingCommand, sends: list[Send]) -> list[Send]:
        """Drop the answer of a one-way request; give others the header's kind of the request, if so configured."""
        if request.is_oneway:
            return [send for send in sends if not (send.command.is_response and send.peer == peer.id)]
        if self.config.reply_in_kind and request.serialize == SerializeType.ROCKETMQ:
            for send in sends:
                if send.command.is_response and send.peer == peer.id:
                    send.command.serialize = SerializeType.ROCKETMQ
        return sends

    # Held pulls.

    def settle(self, now_ms: int) -> list[Send]:
        """Serve held pulls and pops after the fast lane has stored messages; `handle` and `tick` do it themselves."""
        self.files.dependency = 0
        return self.files.after_tables(self._settle(now_ms))

    def _settle(self, now_ms: int) -> list[Send]:
        """Write trace records that are due, and serve held pulls and pops that have messages."""
        if self.trace is not None and self.trace.is_due(now_ms):
            self.parts.run("trace", partial(self.trace.flush, partial(self.writer.write, now_ms=now_ms), now_ms))
        at_once = False
        for arrival in self.writer.take_arrivals():
            at_once |= self.held.arrived(*arrival)
        sends = self._serve_woken(now_ms) if at_once else []
        sends += self._part("pop", partial(self.pop.settle, now_ms))
        if self._next_sweep_ms is None and len(self.held):
            self._next_sweep_ms = now_ms + HELD_SWEEP_MS
        return sends

    def _serve_woken(self, now_ms: int) -> list[Send]:
        """Serve some of the held pulls that have messages; `tick` continues with the others."""
        sends: list[Send] = []
        for pull in self.held.take_woken():
            sends += self._serve_held(pull, now_ms)
        return sends

    def _serve_held(self, pull: HeldPull, now_ms: int) -> list[Send]:
        if (refusal := self._refusal_of_held(pull.peer, pull.request, now_ms)) is not None:
            return self._refuse(pull.peer, pull.request, refusal)
        return self._serve_later(pull.peer, pull.request, lambda: self._concerns.pull.serve_held(pull, now_ms))

    def _serve_held_pop(self, pop: HeldPop, handler: Handler, now_ms: int) -> list[Send]:
        if (refusal := self._refusal_of_held(pop.peer, pop.request, now_ms)) is not None:
            return self._refuse(pop.peer, pop.request, refusal)
        return self._serve_later(pop.peer, pop.request, lambda: handler(pop.peer, pop.request, now_ms))

    def _refusal_of_held(self, peer: Peer, request: RemotingCommand, now_ms: int) -> Refusal | None:
        """Return why a held request is no longer allowed; None: it is allowed.

        Only a change of permissions can make a difference, and no request is held for longer than hold_ms_max.
        """
        if not self.access.on:
            return None
        if self.access.version != self._access_version:
            self._access_version, self._access_changed_ms = self.access.version, now_ms
        if now_ms - self._access_changed_ms > self.config.hold_ms_max:
            return None
        return self.access.check(peer, request, signed=False)

    def take_fetches(self) -> list[tuple[Callable[[], None], HeldPull]]:
        """Return functions that the shell runs in another thread, and for each the pull to give to `fetched` then."""
        return self._concerns.pull.take_fetches()

    def fetched(self, pull: HeldPull, now_ms: int) -> list[Send]:
        """Answer a pull whose messages were fetched."""
        self._concerns.pull.fetched()
        self.files.dependency = 0
        return self.files.after_tables(self._serve_held(pull, now_ms) + self._settle(now_ms))

    def _sweep_held(self, now_ms: int) -> list[Send]:
        """Serve pulls whose hold time is over, and at intervals pulls whose queue only got messages with other tags."""
        sends: list[Send] = []
        for pull in self.held.take_due(now_ms):
            sends += self._serve_held(pull, now_ms)
        if self._next_sweep_ms is not None and now_ms >= self._next_sweep_ms:
            self._next_sweep_ms = None  # `settle` sets it while pulls are held
            for queue in self.held.queues():
                self.held.arrived(queue, self.store.max_offset(*queue), None)
        return sends + self._serve_woken(now_ms)

    def appeared(self, queues: Iterable[tuple[str, int]], now_ms: int) -> None:
        """In a DLedger group: entries of these queues were committed. `settle` serves who waits for them."""
        for topic, queue_id in queues:
            self.writer.appeared(topic, queue_id, self.store.max_offset(topic, queue_id), now_ms)

    def copied(self, now_ms: int) -> None:
        """On a slave: records of the master were appended. Held pulls are served soon."""
        if len(self.held):
            due_ms = now_ms + COPIED_SWEEP_MS
            self._next_sweep_ms = due_ms if self._next_sweep_ms is None else min(self._next_sweep_ms, due_ms)

    # Name servers.

    @property
    def topics_changed(self) -> bool:
        """Return whether topics changed since the last registration with name servers."""
        return self.topics.changed or bool(self.topics.changed_names)

    def take_changed_topics(self) -> tuple[str, ...] | None:
        """Return the changed topics to register with name servers, once; None: all (`registration`)."""
        names = None if self.topics.changed else tuple(self.topics.changed_names)
        self.topics.changed = False
        self.topics.changed_names.clear()
        return names

    def topic_registration(self, topic: str) -> RemotingCommand | None:
        """Return the registration of one topic at a name server that knows this broker; None: no such topic."""
        config = self.topics.all().get(topic)
        return None if config is None else register_topic_command(self.config, config)

    def registration(self) -> RemotingCommand:
        """Return the registration for every name server, to send at start, every register_ms and when all topics
        changed."""
        self.take_changed_topics()
        return register_command(self.config, self.topics)

    def registered(self, body: bytes, now_ms: int) -> None:
        """Process the answer of a name server to a registration: the topics with a static order. BodyError."""
        if body:
            self.topics.mark_ordered(KvTable.decode(body).table, now_ms)

    def unregistration(self) -> RemotingCommand:
        """Return the command that unregisters the broker, for every name server."""
        return unregister_command(self.config)

    # Connections and the clock.

    def _part(self, concern: str, act: Callable[[], list[Send] | None]) -> list[Send]:
        """Do the work of a concern; return its Sends, none if it fails."""
        sends = self.parts.run(concern, act)
        return [] if sends is None else sends

    def disconnected(self, peer: PeerId) -> list[Send]:
        """Remove a closed connection; return the commands to other peers."""
        sends: list[Send] = []
        concerns: tuple[tuple[str, Callable[[PeerId], list[Send] | None]], ...] = (
            ("held", self.held.disconnect),
            ("jobs", self.jobs.disconnected),
            ("pop", self.pop.disconnected),
            ("clients", self._concerns.clients.disconnected),
            ("forwards", self._concerns.forwards.disconnected),
        )
        for concern, act in concerns:
            sends += self._part(concern, partial(act, peer))
        return sends

    def next_tick_ms(self) -> int:
        """Return the epoch ms of the next `tick`. Every call of this object can change it."""
        times = [self._next_save_ms]
        for time_ms in (
            *(() if self.config.is_slave else self._next_deliveries_ms()),
            self.held.next_deadline_ms(),
            self._next_sweep_ms,
            self._concerns.clients.next_tick_ms(),
            self._concerns.slow_groups.next_tick_ms(),
            self._concerns.forwards.next_deadline_ms(),
            self._concerns.jobs.next_due_ms(),
            0 if self.held.is_waking or self.offsets.is_forgetting else None,
            None if self.stats is None else self.stats.next_tick_ms(),
            None if self.trace is None else self.trace.next_due_ms(),
            None if self.events is None or self.config.is_slave else self.events.next_due_ms(),
        ):
            if time_ms is not None:
                times.append(time_ms)
        return min(times)

    def _next_deliveries_ms(self) -> tuple[int | None, ...]:
        """Return when the work is due that writes messages; a slave does none of it."""
        if self.store.away is not None:
            return (self._seen_ms + AWAY_MS,)
        return (
            self.delays.next_due_ms(),
            self.timers.next_due_ms(),
            self.transactions.next_due_ms(),
            self.pop.next_due_ms(),
        )

    def tick(self, now_ms: int) -> list[Send]:
        """Do the work that is due; return the commands to write. A concern that fails does not stop the others."""
        if now_ms < self._seen_ms:
            self._clock_set_back(self._seen_ms - now_ms, now_ms)
        self._seen_ms = now_ms
        self.files.dependency = 0
        sends: list[Send] = []
        for concern, act in self._due_work(now_ms):
            sends += self._part(concern, act)
        return self.files.after_tables(sends + self._settle(now_ms))

    def _due_work(self, now_ms: int) -> Iterator[tuple[str, Callable[[], list[Send] | None]]]:
        """Yield the concerns and their work of a tick, in order. Only a master writes messages, and none while the
        store is away."""
        is_master = not self.config.is_slave
        if is_master and self.store.away is None:
            yield "delays", partial(_unless_away, self.delays.deliver, now_ms)
            yield "timers", partial(_unless_away, self.timers.deliver, now_ms)
            yield "revive", partial(_unless_away, self.pop.revive.tick, now_ms)
        if self.stats is not None:
            yield "stats", partial(self.stats.tick, now_ms)
        if self.offsets.is_forgetting:
            yield "offsets", self.offsets.forget_some
        if now_ms >= self._next_save_ms and self.offsets.copy_some():
            yield "save", partial(self.save, now_ms)
        if is_master and self.store.away is None:
            yield "transactions", partial(self.transactions.tick, now_ms)
        if (job := self.jobs.take()) is not None:
            yield "jobs", partial(self._serve_later, job.peer, job.request, partial(self.jobs.step, job))
        yield "slow groups", partial(self._concerns.slow_groups.tick, now_ms)
        yield "clients", partial(self._concerns.clients.tick, now_ms)
        yield "forwards", partial(self._concerns.forwards.tick, now_ms)
        yield "held", partial(self._sweep_held, now_ms)
        if is_master:
            yield "pop", partial(self.pop.tick, now_ms)
        if is_master and self.events is not None:
            yield "events", partial(self.events.flush, partial(self.writer.write, now_ms=now_ms), now_ms)

    def _clock_set_back(self, by_ms: int, now_ms: int) -> None:
        """Move deadlines back by by_ms, so that no wait becomes longer because the clock was set back."""
        self._next_save_ms -= by_ms
        if self._next_sweep_ms is not None:
            self._next_sweep_ms -= by_ms
        self.held.set_back(by_ms)
        self.transactions.set_back(by_ms)
        self._concerns.clients.set_back(by_ms)
        self._concerns.slow_groups.set_back(by_ms)
        if self.stats is not None:
            self.stats.set_back(by_ms)
        if self.trace is not None:
            self.trace.set_back(by_ms)
        if self.events is not None:
            self.events.set_back(by_ms)

    def save(self, now_ms: int) -> None:
        """Write the changes of the tables that are saved periodically. One that fails does not stop the others."""
        self._next_save_ms = now_ms + self.config.offsets_save_ms
        run = self.parts.run
        is_master = not self.config.is_slave  # a slave delivers nothing: what is left out comes from its master
        if is_master:
            run("transactions", partial(self.transactions.save, now_ms))
            run("pop", partial(self.pop.save, now_ms))
            run("broadcasts", partial(self._concerns.broadcasts.commit, now_ms))
        run("offsets", partial(self.offsets.save, now_ms, self.store.end_offset, self.store.flushed_offset))
        run("filters", partial(self.filters.save, now_ms))
        run("delays", self.delays.save)
        if is_master:
            run("timers", partial(self.timers.save, now_ms))

    def stop(self, now_ms: int) -> None:
        """Write everything that is only in memory. This is the last call before the store is closed."""
        is_master = not self.config.is_slave
        # In a group the replicas no longer get what is written now: another master would have it removed from this log.
        # So events wait for the next role.
        events = None if self.config.controller_mode or self.config.ledger_mode else self.events
        for records in (self.trace, events):
            if is_master and records is not None:
                records.flush(partial(self.writer.write, now_ms=now_ms), now_ms, all_of_it=True)
        if is_master:
            self.transactions.save(now_ms, final=True)
        try:
            self.store.flush()  # delivered messages must be durable before their delivery is saved
        except StoreAway:
            pass  # each table saves what is durable; closing the store reports the rest
        finally:
            if is_master:
                self.timers.save(now_ms, final=True)
            while self.offsets.is_forgetting:
                self.offsets.forget_some()
            self.save(now_ms)
            self.files.finish()


def _unless_away(act: Callable[[int], None], now_ms: int) -> None:
    """Do work that waits while the store is away."""
    with suppress(StoreAway):
        act(now_ms)


def _refused_codes(config: BrokerConfig) -> frozenset[int]:
    """Return the request codes that the broker's role excludes."""
    if not config.is_slave:
        return frozenset()
    return MASTER_CODES if config.slave_read else MASTER_CODES | READ_CODES


def _not_on_a_slave(config: BrokerConfig) -> Refusal:
    """Return the refusal of such a request. It begins as 5.3.3's."""
    return SystemBusy(
        "[REJECTREQUEST]system busy, start flow control for a while: found a slave, "
        f"{config.broker_name} {config.broker_id}, which stores no messages itself"
        + ("" if config.slave_read else " and serves no pulls (slaveReadEnable)")
        + "; expected a request to the master: refresh the route"
    )


def _too_large(request: RemotingCommand) -> Refusal | None:
    """Return the refusal of a body that is too large; None: its size is allowed.

    It comes before the permission checks, because they read the body too.
    """
    size, size_max = len(request.body), BODY_SIZES.get(request.code, BODY_SIZE_MAX)
    if size_max is None or size <= size_max:
        return None
    return InvalidParameter(
        f"found a body of {size} bytes in request {request.code}, expected at most {size_max}: send several requests"
    )
