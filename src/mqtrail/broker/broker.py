"""The broker's front: which concern serves which request, and what the clock starts.

    bytes -> net -> wire -> Broker.handle(peer, command, now_ms) -> [Send] -> node -> net

It touches nothing: no socket, clock, thread or chance. The shell calls `handle` for every command of a peer, `tick`
when `next_tick_ms` says so, `disconnected` when a connection closes, and writes the Sends it gets, each no sooner than
the log is flushed to its after_offset. One thread calls it all.

Source: BrokerController, NettyRemotingAbstract.processRequestCommand, apache/rocketmq broker/ and remoting/.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Final

from mqtrail.store import ConfigFileStore, MemoryDisk, MessageStore, StoreError
from mqtrail.wire import (
    Handler,
    KvTable,
    MQError,
    Peer,
    PeerId,
    Refusal,
    RemotingCommand,
    RequestCode,
    RequestCodeNotSupported,
    ResponseCode,
    Send,
    SerializeType,
    answer,
)

from .access import Access, AclFiles, Scene
from .clients import ClientRequests, ForwardedRequests, OffsetRequests
from .config import BrokerConfig
from .errors import response_code
from .filter import FilterTable
from .jobs import Jobs
from .messages import (
    BroadcastOffsets,
    FastFailure,
    HeldPull,
    HeldPulls,
    PullMessages,
    QueryMessages,
    ReplyMessages,
    SendBack,
    SendMessages,
    SlowGroups,
)
from .operator import (
    ClientSurveys,
    GroupRequests,
    OffsetAdmin,
    ReplicaRequests,
    SettingsRequests,
    StatsRequests,
    StoreAdmin,
    TopicRequests,
)
from .pop import HeldPop, Pop
from .properties import PropertyRules
from .tables import (
    ClientTable,
    GroupTable,
    LockTable,
    OffsetTable,
    RateLimits,
    TopicTable,
    register_command,
    register_topic_command,
    unregister_command,
)
from .telemetry import BrokerTrace, Statistics
from .timing import DelayedMessages, TimerRequests, Timers
from .transactions import Transactions
from .writer import MessageWriter

_PAST_ALL: Final = 1 << 62  # a queue offset past any
HELD_SWEEP_MS: Final = 5_000  # how often held pulls are served although what arrived did not match their tags


class Broker:
    """One broker. files: where its tables are kept; unique_id: gives a UNIQ_KEY to messages that come without one."""

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
        self.config = config
        self.store = store
        self.files = files
        self.topics = TopicTable(config, files, now_ms)
        self.groups = GroupTable(config, files, now_ms)
        scene = Scene(
            config.cluster_name,
            store,
            lambda group: self.groups.get(group) is not None,
            like_apache=config.acl_like_apache,
        )
        self.access = Access(config, files, scene, acl_files)
        self.offsets = OffsetTable(files, now_ms)
        if self.offsets.cut(store.max_offset):
            self.offsets.save(now_ms, store.end_offset, store.flushed_offset)
            files.finish()
        self.clients = ClientTable()
        self.filters = FilterTable(files, now_ms)
        self.locks = LockTable(config.lock_ttl_ms, config.locks_max)
        self.held = HeldPulls(config.held_pulls_max)
        self.stats = Statistics(config.cluster_name, now_ms) if config.statistics else None
        properties = PropertyRules(config, unique_id)
        self.trace = (
            BrokerTrace(config, self.topics, self.clients, properties, unique_id()) if config.broker_trace else None
        )
        self.writer = MessageWriter(store, self.held, self.stats, self.trace)
        self.delays = DelayedMessages(config, files, store, self.writer)
        self.timers = Timers(config, files, store, self.writer, now_ms)
        self.jobs = Jobs(files)
        limits = RateLimits(config)
        self.fast_failure = FastFailure(config)
        self._slow_groups = SlowGroups(config, self.groups, self.offsets, store, now_ms)
        self.send = SendMessages(
            config,
            self.topics,
            self.groups,
            self.locks,
            self.delays,
            self.timers,
            self.writer,
            properties,
            self.trace,
            limits,
            self.jobs,
        )
        self.broadcasts = BroadcastOffsets(config, store, self.clients, self.offsets)
        self.pull = PullMessages(
            config,
            store,
            self.topics,
            self.groups,
            self.clients,
            self.offsets,
            self.filters,
            self.held,
            self.stats,
            self.trace,
            self.broadcasts,
            limits,
        )
        self._send_back = SendBack(
            config, store, self.topics, self.groups, self.delays, self.writer, self.stats, self.trace
        )
        self._client_requests = ClientRequests(
            config, self.clients, self.groups, self.topics, self.locks, self.filters, self.access.account_of
        )
        self._forwards = ForwardedRequests(self.clients, store, config.forward_timeout_ms)
        self.pop = Pop(
            config,
            files,
            store,
            self.topics,
            self.groups,
            self.clients,
            self.offsets,
            self.writer,
            self.timers,
            limits,
            self.stats,
            self.trace,
            self._serve_held_pop,
            now_ms,
        )
        self.transactions = Transactions(
            config,
            store,
            self.topics,
            self.clients,
            self.offsets,
            self.writer,
            lambda client, topic: self.access.may_publish(client.peer, client.account, topic),
            now_ms,
        )
        self.stalls: dict[str, list[int]] = {}  # work that held the loop -> times, ms; noted by the shell
        self.clock_jumps = {"forward": 0, "back": 0}  # of the machine's clock, noted by the shell
        self._seen_ms = now_ms
        self._access_version, self._access_changed_ms = self.access.version, now_ms
        self.settings_version = 1  # of settings that request 25 changed: who keeps some asks again
        self._boot_ms = now_ms
        self._next_save_ms = now_ms + config.offsets_save_ms
        self._next_sweep_ms: int | None = None
        self._handlers = self._table()

    def _table(self) -> dict[int, Handler]:
        clients = self._client_requests
        offsets = OffsetRequests(self.config, self.store, self.topics, self.groups, self.offsets, self.delays)
        replies = ReplyMessages(self.config, self.clients, self.send, self._forwards, self.writer)
        timers = TimerRequests(self.config, self.topics, self.timers, self.writer)
        query = QueryMessages(self.config, self.store)
        topics = TopicRequests(self.topics, self.store, self.offsets, self.stats)
        groups = GroupRequests(
            self.config.broker_name, self.groups, self.topics, self.clients, self.offsets, self.store
        )
        name = self.config.broker_name
        offset_admin = OffsetAdmin(name, self.topics, self.groups, self.clients, self.offsets, self.store)
        store_admin = StoreAdmin(self.topics, self.clients, self.filters, self.store)
        replicas = ReplicaRequests(self.config, self.store)
        surveys = ClientSurveys(name, self.topics, self.clients, self.offsets, self.store, self._forwards)
        settings = SettingsRequests(self.config, self.store, self._boot_ms, self._settings_changed)
        groups.on_reset = lambda topic, queue_id: self.writer.arrived(topic, queue_id, _PAST_ALL, None)
        stats = StatsRequests(
            self.config,
            self.store,
            self.topics,
            self.groups,
            self.clients,
            self.offsets,
            self.delays,
            self.stats,
            self._boot_ms,
        )
        return {
            RequestCode.SEND_MESSAGE: self.send.handle,
            RequestCode.SEND_MESSAGE_V2: self.send.handle,
            RequestCode.SEND_BATCH_MESSAGE: self.send.handle,
            RequestCode.CONSUMER_SEND_MSG_BACK: self._send_back.handle,
            RequestCode.PULL_MESSAGE: self.pull.handle,
            RequestCode.LITE_PULL_MESSAGE: self.pull.handle,
            RequestCode.QUERY_MESSAGE: query.by_key,
            RequestCode.VIEW_MESSAGE_BY_ID: query.by_offset,
            RequestCode.QUERY_CONSUMER_OFFSET: offsets.query,
            RequestCode.UPDATE_CONSUMER_OFFSET: offsets.update,
            RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: offsets.search,
            RequestCode.GET_MAX_OFFSET: offsets.max,
            RequestCode.GET_MIN_OFFSET: offsets.min,
            RequestCode.GET_EARLIEST_MSG_STORETIME: offsets.earliest,
            RequestCode.GET_ALL_CONSUMER_OFFSET: self.jobs.handler(offsets.all_consumer_offsets),
            RequestCode.GET_ALL_DELAY_OFFSET: offsets.all_delay_offsets,
            RequestCode.HEART_BEAT: clients.heartbeat,
            RequestCode.UNREGISTER_CLIENT: clients.unregister,
            RequestCode.GET_CONSUMER_LIST_BY_GROUP: clients.consumer_ids,
            RequestCode.CHECK_CLIENT_CONFIG: clients.check_config,
            RequestCode.LOCK_BATCH_MQ: clients.lock,
            RequestCode.UNLOCK_BATCH_MQ: clients.unlock,
            RequestCode.END_TRANSACTION: self.transactions.end,
            RequestCode.RESUME_CHECK_HALF_MESSAGE: self.transactions.resume,
            RequestCode.SEND_REPLY_MESSAGE: replies.handle,
            RequestCode.SEND_REPLY_MESSAGE_V2: replies.handle,
            RequestCode.RECALL_MESSAGE: timers.recall,
            RequestCode.GET_TIMER_CHECK_POINT: timers.checkpoint,
            RequestCode.GET_TIMER_METRICS: timers.metrics,
            RequestCode.UPDATE_AND_CREATE_TOPIC: topics.update,
            RequestCode.UPDATE_AND_CREATE_TOPIC_LIST: topics.update_list,
            RequestCode.DELETE_TOPIC_IN_BROKER: topics.delete,
            RequestCode.GET_ALL_TOPIC_CONFIG: self.jobs.handler(topics.all),
            RequestCode.GET_TOPIC_CONFIG: topics.one,
            RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER: topics.system,
            RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: groups.update,
            RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: groups.update_list,
            RequestCode.DELETE_SUBSCRIPTIONGROUP: groups.delete,
            RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: self.jobs.handler(groups.all),
            RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG: groups.one,
            RequestCode.QUERY_TOPIC_CONSUME_BY_WHO: groups.consumers_of_topic,
            RequestCode.QUERY_TOPICS_BY_CONSUMER: groups.topics_of_group,
            RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER: groups.subscription,
            RequestCode.INVOKE_BROKER_TO_RESET_OFFSET: lambda peer, request, now_ms: (
                groups.reset if self.config.server_side_reset else surveys.reset
            )(peer, request, now_ms),
            RequestCode.GET_TOPIC_STATS_INFO: stats.topic,
            RequestCode.GET_CONSUME_STATS: self.jobs.handler(stats.group),
            RequestCode.GET_BROKER_CONSUME_STATS: self.jobs.handler(stats.broker_groups),
            RequestCode.GET_CONSUMER_CONNECTION_LIST: stats.consumers,
            RequestCode.GET_PRODUCER_CONNECTION_LIST: stats.producers,
            RequestCode.GET_ALL_PRODUCER_INFO: stats.all_producers,
            RequestCode.VIEW_BROKER_STATS_DATA: stats.windows,
            RequestCode.GET_BROKER_CONFIG: settings.show,
            RequestCode.UPDATE_BROKER_CONFIG: settings.update,
            RequestCode.QUERY_CONSUME_TIME_SPAN: offset_admin.time_span,
            RequestCode.QUERY_CORRECTION_OFFSET: offset_admin.corrections,
            RequestCode.CLONE_GROUP_OFFSET: offset_admin.clone,
            RequestCode.UPDATE_AND_GET_GROUP_FORBIDDEN: offset_admin.forbid,
            RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS: surveys.positions,
            RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE: self.jobs.handler(store_admin.clean_expired_queues),
            RequestCode.CLEAN_UNUSED_TOPIC: store_admin.clean_unused_topics,
            RequestCode.DELETE_EXPIRED_COMMITLOG: store_admin.delete_expired_log,
            RequestCode.QUERY_CONSUME_QUEUE: store_admin.queue_entries,
            RequestCode.CHECK_ROCKSDB_CQ_WRITE_PROGRESS: store_admin.refuse_rocksdb,
            RequestCode.EXPORT_ROCKSDB_CONFIG_TO_JSON: store_admin.refuse_rocksdb,
            RequestCode.UPDATE_COLD_DATA_FLOW_CTR_CONFIG: store_admin.set_cold_thresholds,
            RequestCode.REMOVE_COLD_DATA_FLOW_CTR_CONFIG: store_admin.drop_cold_threshold,
            RequestCode.GET_COLD_DATA_FLOW_CTR_INFO: store_admin.cold_data,
            RequestCode.SET_COMMITLOG_READ_MODE: store_admin.set_read_ahead,
            RequestCode.NOTIFY_MIN_BROKER_ID_CHANGE: replicas.smallest_id_changed,
            RequestCode.EXCHANGE_BROKER_HA_INFO: replicas.exchange_places,
            RequestCode.GET_BROKER_HA_STATUS: replicas.status,
            RequestCode.RESET_MASTER_FLUSH_OFFSET: replicas.reset_flushed,
            RequestCode.GET_BROKER_EPOCH_CACHE: replicas.epochs,
            RequestCode.GET_BROKER_RUNTIME_INFO: stats.runtime,
            RequestCode.GET_CONSUMER_RUNNING_INFO: self._forwards.running_info,
            RequestCode.CONSUME_MESSAGE_DIRECTLY: self._forwards.consume_directly,
            **self.access.handlers(),
            **self.pop.handlers(),
        }

    def _settings_changed(self, names: frozenset[str], now_ms: int) -> None:
        self.settings_version += 1
        if names & {"permission", "auto_create_topic"}:
            self.topics.settings_changed(now_ms)

    # Commands.

    def connected(self, peer: Peer) -> None:
        """Note a new connection. Nothing is known of it until it speaks."""

    def handle(self, peer: Peer, command: RemotingCommand, now_ms: int) -> list[Send]:
        """Serve one command; return what is to be written, to this peer and to others."""
        if command.is_response:
            return self._forwards.answered(peer, command)
        if self.access.on and (refusal := self.access.check(peer, command)) is not None:
            return self._serve(peer, command, lambda: _refuse(refusal))
        self.files.looked = 0
        sends = self._serve(peer, command, lambda: self._handler(command)(peer, command, now_ms))
        return self._after_tables(sends + self.settle(now_ms))

    def _after_tables(self, sends: list[Send]) -> list[Send]:
        """Let what follows from changes of tables wait until these are durable."""
        number = self.files.looked
        if number <= self.files.settled:
            return sends
        return [replace(send, after_tables=number) for send in sends]

    def _handler(self, command: RemotingCommand) -> Handler:
        handler = self._handlers.get(command.code)
        if handler is None:
            raise RequestCodeNotSupported(f" request type {command.code} not supported")
        return handler

    def _serve(self, peer: Peer, request: RemotingCommand, act: Callable[[], list[Send]]) -> list[Send]:
        """Act, and turn an error into its answer."""
        try:
            sends = act()
        except MQError as error:
            remark = error.remark if isinstance(error, Refusal) else str(error)
            sends = answer(peer, request, code=response_code(error, request.version), remark=remark)
        except StoreError as error:
            sends = answer(peer, request, code=ResponseCode.SYSTEM_ERROR, remark=str(error))
        if request.is_oneway:
            return [send for send in sends if not (send.command.is_response and send.peer == peer.id)]
        if self.config.reply_in_kind and request.serialize == SerializeType.ROCKETMQ:
            for send in sends:
                if send.command.is_response and send.peer == peer.id:
                    send.command.serialize = SerializeType.ROCKETMQ
        return sends

    # Held pulls.

    def settle(self, now_ms: int) -> list[Send]:
        """Write the trace that is due, and serve the held pulls that something arrived for.

        `handle` and `tick` end with it; the fast lane calls it when it has served a piece.
        """
        if self.trace is not None:
            self.trace.flush(lambda records: self.writer.write(records, now_ms), now_ms)
        at_once = False
        for arrival in self.writer.take_arrivals():
            at_once |= self.held.arrived(*arrival)
        sends = self._serve_woken(now_ms) if at_once else []
        sends += self.pop.settle(now_ms)
        if self._next_sweep_ms is None and len(self.held):
            self._next_sweep_ms = now_ms + HELD_SWEEP_MS
        return sends

    def _serve_woken(self, now_ms: int) -> list[Send]:
        """Serve some of the held pulls that something has arrived for; `tick` goes on with the others."""
        sends: list[Send] = []
        for pull in self.held.take_woken():
            sends += self._serve_held(pull, now_ms)
        return sends

    def _serve_held(self, pull: HeldPull, now_ms: int) -> list[Send]:
        if (refusal := self._refusal_of_held(pull.peer, pull.request, now_ms)) is not None:
            return self._serve(pull.peer, pull.request, lambda: _refuse(refusal))
        return self._serve(pull.peer, pull.request, lambda: self.pull.serve_held(pull, now_ms))

    def _serve_held_pop(self, pop: HeldPop, handler: Handler, now_ms: int) -> list[Send]:
        if (refusal := self._refusal_of_held(pop.peer, pop.request, now_ms)) is not None:
            return self._serve(pop.peer, pop.request, lambda: _refuse(refusal))
        return self._serve(pop.peer, pop.request, lambda: handler(pop.peer, pop.request, now_ms))

    def _refusal_of_held(self, peer: Peer, request: RemotingCommand, now_ms: int) -> Refusal | None:
        """Return why a held request is refused that was allowed when it came; None: it still is.

        Only a change of what is allowed can make a difference, and no request is held for longer than hold_ms_max.
        """
        if not self.access.on:
            return None
        if self.access.version != self._access_version:
            self._access_version, self._access_changed_ms = self.access.version, now_ms
        if now_ms - self._access_changed_ms > self.config.hold_ms_max:
            return None
        return self.access.check(peer, request, signed=False)

    def _sweep_held(self, now_ms: int) -> list[Send]:
        """Serve the pulls whose time is up, and now and then those whose queue grew by what their tags leave out."""
        sends: list[Send] = []
        for pull in self.held.take_due(now_ms):
            sends += self._serve_held(pull, now_ms)
        if self._next_sweep_ms is not None and now_ms >= self._next_sweep_ms:
            self._next_sweep_ms = None  # `settle` sets it while pulls are held
            for queue in self.held.queues():
                self.held.arrived(queue, self.store.max_offset(*queue), None)
        return sends + self._serve_woken(now_ms)

    # Name servers.

    @property
    def topics_changed(self) -> bool:
        """Tell whether name servers do not know the topics as they are now: tell them again."""
        return self.topics.changed or bool(self.topics.changed_names)

    def take_changed_topics(self) -> tuple[str, ...] | None:
        """Return the topics that name servers are to be told of, once; None: all of them (`registration`)."""
        names = None if self.topics.changed else tuple(self.topics.changed_names)
        self.topics.changed = False
        self.topics.changed_names.clear()
        return names

    def topic_registration(self, topic: str) -> RemotingCommand | None:
        """Return what to tell a name server of one topic, if it knows this broker; None: there is no such topic."""
        config = self.topics.all().get(topic)
        return None if config is None else register_topic_command(self.config, config)

    def registration(self) -> RemotingCommand:
        """Return what to send to every name server now, every register_ms and whenever all topics have changed."""
        self.take_changed_topics()
        return register_command(self.config, self.topics)

    def registered(self, body: bytes, now_ms: int) -> None:
        """Take in what a name server answered to a registration: the topics with a static order. BodyError."""
        if body:
            self.topics.mark_ordered(KvTable.decode(body).table, now_ms)

    def unregistration(self) -> RemotingCommand:
        """Return what to send to every name server before the broker stops."""
        return unregister_command(self.config)

    # Connections and the clock.

    def disconnected(self, peer: PeerId) -> list[Send]:
        """Forget a closed connection; return what others must be told."""
        self.held.disconnect(peer)
        self.pop.disconnected(peer)
        return self._client_requests.disconnected(peer) + self._forwards.disconnected(peer)

    def next_tick_ms(self) -> int:
        """Return when `tick` is to be called next; ask again after every call of this object."""
        times = [self._next_save_ms]
        for time_ms in (
            self.held.next_deadline_ms(),
            self._next_sweep_ms,
            self.delays.next_due_ms(),
            self.timers.next_due_ms(),
            self.transactions.next_due_ms(),
            self.pop.next_due_ms(),
            self._client_requests.next_tick_ms(),
            self._slow_groups.next_tick_ms(),
            self._forwards.next_deadline_ms(),
            self.jobs.next_due_ms(),
            0 if self.held.is_waking else None,
            None if self.stats is None else self.stats.next_tick_ms(),
            None if self.trace is None else self.trace.next_due_ms(),
        ):
            if time_ms is not None:
                times.append(time_ms)
        return min(times)

    def tick(self, now_ms: int) -> list[Send]:
        """Do what the time is up for; return what is to be written."""
        if now_ms < self._seen_ms:
            self._clock_set_back(self._seen_ms - now_ms, now_ms)
        self._seen_ms = now_ms
        self.files.looked = 0
        self.delays.deliver(now_ms)
        self.timers.deliver(now_ms)
        self.pop.revive.tick(now_ms)
        if self.stats is not None:
            self.stats.tick(now_ms)
        if now_ms >= self._next_save_ms:
            self.save(now_ms)
        sends = self.transactions.tick(now_ms)
        if (job := self.jobs.take()) is not None:
            sends += self._serve(job.peer, job.request, partial(self.jobs.step, job))
        self._slow_groups.tick(now_ms)
        sends += self._client_requests.tick(now_ms)
        sends += self._forwards.tick(now_ms)
        sends += self._sweep_held(now_ms)
        sends += self.pop.tick(now_ms)
        return self._after_tables(sends + self.settle(now_ms))

    def _clock_set_back(self, by_ms: int, now_ms: int) -> None:
        """Wait no longer for anything than before the clock was set back."""
        self._next_save_ms -= by_ms
        if self._next_sweep_ms is not None:
            self._next_sweep_ms -= by_ms
        self.held.set_back(by_ms)
        self.transactions.set_back(by_ms)
        self._client_requests.set_back(by_ms)
        self._slow_groups.set_back(by_ms)
        if self.stats is not None:
            self.stats.set_back(by_ms)
        if self.trace is not None:
            self.trace.set_back(by_ms)

    def save(self, now_ms: int) -> None:
        """Write what changed of the tables that are saved now and then."""
        self._next_save_ms = now_ms + self.config.offsets_save_ms
        self.transactions.save(now_ms)
        self.pop.save(now_ms)
        self.broadcasts.commit(now_ms)
        self.offsets.save(now_ms, self.store.end_offset, self.store.flushed_offset)
        self.filters.save(now_ms)
        self.delays.save()
        self.timers.save(now_ms)

    def stop(self, now_ms: int) -> None:
        """Write everything that waits in memory: the last call, before the store is closed."""
        if self.trace is not None:
            self.trace.flush(lambda records: self.writer.write(records, now_ms), now_ms, all_of_it=True)
        self.transactions.save(now_ms, final=True)
        try:
            self.store.flush()  # what was delivered must be durable before it counts as that
        finally:
            self.timers.save(now_ms, final=True)
            self.save(now_ms)
            self.files.finish()


def _refuse(refusal: Refusal) -> list[Send]:
    raise refusal
