"""SyncAdmin: Admin for code without asyncio, made from it method by method."""

import functools
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from typing import Any, Concatenate, ParamSpec, TypeVar

from mqtrail.client.admin import Admin
from mqtrail.client.config import NAMESRV_DEFAULT, InstanceConfig
from mqtrail.client.sync import Facade, background

P = ParamSpec("P")
T = TypeVar("T")


def _call(
    method: Callable[Concatenate[Admin, P], Coroutine[Any, Any, T]],
) -> "Callable[Concatenate[SyncAdmin, P], T]":
    """Return method as one that waits: same arguments, same result, same words."""

    @functools.wraps(method)
    def call(self: "SyncAdmin", /, *args: P.args, **kwargs: P.kwargs) -> T:
        return background().run(method(self._get(), *args, **kwargs))

    return call


def _iterate(
    method: Callable[Concatenate[Admin, P], AsyncIterator[T]],
) -> "Callable[Concatenate[SyncAdmin, P], Iterator[T]]":
    """Return an asynchronous iterator's method as a plain one's."""

    @functools.wraps(method)
    def iterate(self: "SyncAdmin", /, *args: P.args, **kwargs: P.kwargs) -> Iterator[T]:
        items = method(self._get(), *args, **kwargs)
        try:
            while (item := background().run(_next(items))) is not None:
                yield item
        finally:
            background().run(_close(items))

    return iterate


async def _next(items: AsyncIterator[T]) -> T | None:
    return await anext(items, None)


async def _close(items: AsyncIterator[Any]) -> None:
    close = getattr(items, "aclose", None)
    if close is not None:
        await close()


class SyncAdmin(Facade[Admin]):
    """The questions of Admin, asked and waited for. Thread safe. What each means and raises: see Admin."""

    def __init__(self, namesrv: str | Sequence[str] = NAMESRV_DEFAULT, *, config: InstanceConfig | None = None) -> None:
        super().__init__(lambda: Admin(namesrv, config=config))

    def __enter__(self) -> "SyncAdmin":
        return self

    cluster = _call(Admin.cluster)
    masters = _call(Admin.masters)
    targets = _call(Admin.targets)

    topics = _call(Admin.topics)
    topics_of_cluster = _call(Admin.topics_of_cluster)
    system_topics = _call(Admin.system_topics)
    route = _call(Admin.route)
    clusters_of = _call(Admin.clusters_of)
    queues = _call(Admin.queues)
    create_topic = _call(Admin.create_topic)
    create_topics = _call(Admin.create_topics)
    topic_config = _call(Admin.topic_config)
    set_topic_perm = _call(Admin.set_topic_perm)
    delete_topic = _call(Admin.delete_topic)
    topic_configs = _call(Admin.topic_configs)
    topic_stats = _call(Admin.topic_stats)
    clean_unused_topics = _call(Admin.clean_unused_topics)
    order_config = _call(Admin.order_config)
    set_order_config = _call(Admin.set_order_config)
    delete_order_config = _call(Admin.delete_order_config)

    groups = _call(Admin.groups)
    group_config = _call(Admin.group_config)
    create_group = _call(Admin.create_group)
    create_groups = _call(Admin.create_groups)
    delete_group = _call(Admin.delete_group)
    delete_group_topics = _call(Admin.delete_group_topics)
    groups_of_topic = _call(Admin.groups_of_topic)
    topics_of_group = _call(Admin.topics_of_group)
    subscription = _call(Admin.subscription)
    consumer_connections = _call(Admin.consumer_connections)
    group_connections = _call(Admin.group_connections)
    running_info = _call(Admin.running_info)
    members = _call(Admin.members)
    producer_connections = _call(Admin.producer_connections)
    producers = _call(Admin.producers)
    consume_stats = _call(Admin.consume_stats)
    broker_consume_stats = _call(Admin.broker_consume_stats)
    consume_time_spans = _call(Admin.consume_time_spans)
    consumer_status = _call(Admin.consumer_status)
    set_consume_mode = _call(Admin.set_consume_mode)

    consumer_offset = _call(Admin.consumer_offset)
    min_offset = _call(Admin.min_offset)
    max_offset = _call(Admin.max_offset)
    offset_by_time = _call(Admin.offset_by_time)
    earliest_store_ms = _call(Admin.earliest_store_ms)
    committed_offsets = _call(Admin.committed_offsets)
    delay_offsets = _call(Admin.delay_offsets)
    reset_offset = _call(Admin.reset_offset)
    skip_backlog = _call(Admin.skip_backlog)
    set_offset = _call(Admin.set_offset)
    set_offsets = _call(Admin.set_offsets)
    clone_offsets = _call(Admin.clone_offsets)

    message_at = _call(Admin.message_at)
    query = _call(Admin.query)
    message_by_id = _call(Admin.message_by_id)
    pull = _call(Admin.pull)
    message_at_offset = _call(Admin.message_at_offset)
    messages = _iterate(Admin.messages)
    consume_queue = _call(Admin.consume_queue)
    message_tracks = _call(Admin.message_tracks)
    consume_directly = _call(Admin.consume_directly)
    resend_dead_letters = _iterate(Admin.resend_dead_letters)
    resume_check = _call(Admin.resume_check)

    brokers = _call(Admin.brokers)
    broker_config = _call(Admin.broker_config)
    set_broker_config = _call(Admin.set_broker_config)
    runtime_info = _call(Admin.runtime_info)
    broker_stats = _call(Admin.broker_stats)
    ha_status = _call(Admin.ha_status)
    clean_expired_queues = _call(Admin.clean_expired_queues)
    delete_expired_logs = _call(Admin.delete_expired_logs)
    wipe_write_perm = _call(Admin.wipe_write_perm)
    add_write_perm = _call(Admin.add_write_perm)
    namesrv_config = _call(Admin.namesrv_config)
    set_namesrv_config = _call(Admin.set_namesrv_config)
    kv_get = _call(Admin.kv_get)
    kv_list = _call(Admin.kv_list)
    kv_put = _call(Admin.kv_put)
    kv_delete = _call(Admin.kv_delete)

    users = _call(Admin.users)
    user = _call(Admin.user)
    create_user = _call(Admin.create_user)
    update_user = _call(Admin.update_user)
    delete_user = _call(Admin.delete_user)
    acls = _call(Admin.acls)
    acl = _call(Admin.acl)
    create_acl = _call(Admin.create_acl)
    update_acl = _call(Admin.update_acl)
    delete_acl = _call(Admin.delete_acl)
    set_acl_account = _call(Admin.set_acl_account)
    delete_acl_account = _call(Admin.delete_acl_account)
    set_white_addresses = _call(Admin.set_white_addresses)
    acl_versions = _call(Admin.acl_versions)
