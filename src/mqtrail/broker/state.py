"""State shared by the broker's concerns: settings, store, tables, statistics, trace, and the writer of the store.

A concern receives the whole state and copies the parts that it uses to its own attributes, to save a look-up.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

from mqtrail.store import ConfigFileStore, MessageStore
from mqtrail.wire import LONG_MAX, Jobs

from .access import Access, AccessContext, AclFiles, Permission
from .config import BrokerConfig
from .filter import FilterTable
from .ha import Replicas
from .own_queues import OwnQueues
from .properties import PropertyRules
from .tables import ClientTable, GroupTable, HeldPulls, LockTable, OffsetTable, RateLimits, TopicTable
from .telemetry import BrokerEvents, BrokerTrace, Statistics, TraceMessages
from .writer import MessageWriter


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerState:
    """One broker's state. boot_ms: when it started. stats and trace are None where settings switch them off."""

    config: BrokerConfig
    store: MessageStore
    files: ConfigFileStore
    boot_ms: int
    topics: TopicTable
    groups: GroupTable
    offsets: OffsetTable
    clients: ClientTable
    filters: FilterTable
    locks: LockTable
    held: HeldPulls
    limits: RateLimits
    jobs: Jobs
    access: Access
    properties: PropertyRules
    stats: Statistics | None
    trace: BrokerTrace | None
    events: BrokerEvents | None
    writer: MessageWriter
    replicas: Replicas
    own: OwnQueues


def load_state(
    config: BrokerConfig,
    store: MessageStore,
    files: ConfigFileStore,
    acl_files: AclFiles | None,
    unique_id: Callable[[], str],
    now_ms: int,
    permissions: Mapping[int, Permission],
    bounded_codes: frozenset[int],
) -> BrokerState:
    """Return the state of a starting broker: tables loaded from files, offsets cut to the ends of their queues.

    permissions: the permission that each request code needs. bounded_codes: those of jobs whose work depends on their
    body alone.
    """
    topics, groups = TopicTable(config, files, now_ms), GroupTable(config, files, now_ms)
    context = AccessContext(
        config.cluster_name,
        store,
        lambda group: groups.get(group) is not None,
        lambda topic: topic in topics,
        permissions,
        like_apache=config.acl_like_apache,
    )
    access = Access(config, files, context, acl_files)
    offsets = OffsetTable(files, now_ms)
    if offsets.cut(partial(_end_of, store), is_slave=config.is_slave):
        offsets.save(now_ms, store.end_offset, store.flushed_offset)
        files.finish()
    clients, held = ClientTable(), HeldPulls(config.held_pulls_max)
    stats = Statistics(config.cluster_name, now_ms) if config.statistics else None
    properties = PropertyRules(config, unique_id)
    replicas = Replicas(config, store)
    traces = config.broker_trace and not config.is_slave
    messages = TraceMessages(config, topics, properties)
    trace = BrokerTrace(config, clients, messages, unique_id()) if traces else None
    events = BrokerEvents(config, messages) if config.writes_events else None
    return BrokerState(
        config=config,
        store=store,
        files=files,
        boot_ms=now_ms,
        topics=topics,
        groups=groups,
        offsets=offsets,
        clients=clients,
        filters=FilterTable(files, now_ms),
        locks=LockTable(config.lock_ttl_ms, config.locks_max),
        held=held,
        limits=RateLimits(config),
        jobs=Jobs(files, bounded_codes),
        access=access,
        properties=properties,
        stats=stats,
        trace=trace,
        events=events,
        writer=MessageWriter(store, held, stats, trace, replicas),
        replicas=replicas,
        own=OwnQueues(store),
    )


def _end_of(store: MessageStore, topic: str, queue_id: int) -> int:
    """Return the end of a queue; an unknown one is behind every offset."""
    return store.max_offset(topic, queue_id) if store.is_end_known(topic, queue_id) else LONG_MAX
