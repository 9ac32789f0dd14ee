"""SyncAdmin: Admin for code without asyncio; each method wraps the one of Admin."""

from collections.abc import Sequence
from typing import Self

from mqtrail.net import NAMESRV_DEFAULT

from ..admin import Admin
from ..core import InstanceConfig
from .facade import Facade, iterating, waiting


class SyncAdmin(Facade[Admin]):
    """Admin for code without asyncio. Thread safe. For what each method does and raises, see Admin."""

    def __init__(self, namesrv: str | Sequence[str] = NAMESRV_DEFAULT, *, config: InstanceConfig | None = None) -> None:
        super().__init__(lambda: Admin(namesrv, config=config))

    def __enter__(self) -> Self:
        return self

    cluster = waiting(Admin.cluster)
    masters = waiting(Admin.masters)
    targets = waiting(Admin.targets)

    topics = waiting(Admin.topics)
    topics_of_cluster = waiting(Admin.topics_of_cluster)
    system_topics = waiting(Admin.system_topics)
    route = waiting(Admin.route)
    clusters_of = waiting(Admin.clusters_of)
    queues = waiting(Admin.queues)
    create_topic = waiting(Admin.create_topic)
    create_topics = waiting(Admin.create_topics)
    topic_config = waiting(Admin.topic_config)
    set_topic_perm = waiting(Admin.set_topic_perm)
    delete_topic = waiting(Admin.delete_topic)
    topic_configs = waiting(Admin.topic_configs)
    topic_stats = waiting(Admin.topic_stats)
    broker_topic_stats = waiting(Admin.broker_topic_stats)
    clean_unused_topics = waiting(Admin.clean_unused_topics)
    order_config = waiting(Admin.order_config)
    set_order_config = waiting(Admin.set_order_config)
    delete_order_config = waiting(Admin.delete_order_config)

    groups = waiting(Admin.groups)
    group_config = waiting(Admin.group_config)
    create_group = waiting(Admin.create_group)
    create_groups = waiting(Admin.create_groups)
    delete_group = waiting(Admin.delete_group)
    delete_group_topics = waiting(Admin.delete_group_topics)
    groups_of_topic = waiting(Admin.groups_of_topic)
    topics_of_group = waiting(Admin.topics_of_group)
    subscription = waiting(Admin.subscription)
    consumer_connections = waiting(Admin.consumer_connections)
    group_connections = waiting(Admin.group_connections)
    running_info = waiting(Admin.running_info)
    members = waiting(Admin.members)
    producer_connections = waiting(Admin.producer_connections)
    producers = waiting(Admin.producers)
    consume_stats = waiting(Admin.consume_stats)
    broker_consume_stats = waiting(Admin.broker_consume_stats)
    consume_time_spans = waiting(Admin.consume_time_spans)
    broker_time_spans = waiting(Admin.broker_time_spans)
    consumer_status = waiting(Admin.consumer_status)
    set_consume_mode = waiting(Admin.set_consume_mode)

    consumer_offset = waiting(Admin.consumer_offset)
    min_offset = waiting(Admin.min_offset)
    max_offset = waiting(Admin.max_offset)
    offset_by_time = waiting(Admin.offset_by_time)
    earliest_store_ms = waiting(Admin.earliest_store_ms)
    committed_offsets = waiting(Admin.committed_offsets)
    delay_offsets = waiting(Admin.delay_offsets)
    timer_counts = waiting(Admin.timer_counts)
    lag = waiting(Admin.lag)
    plan_reset = waiting(Admin.plan_reset)
    reset_offset = waiting(Admin.reset_offset)
    skip_backlog = waiting(Admin.skip_backlog)
    set_offset = waiting(Admin.set_offset)
    set_offsets = waiting(Admin.set_offsets)
    clone_offsets = waiting(Admin.clone_offsets)

    message_at = waiting(Admin.message_at)
    query = waiting(Admin.query)
    message_by_id = waiting(Admin.message_by_id)
    pull = waiting(Admin.pull)
    message_at_offset = waiting(Admin.message_at_offset)
    messages = iterating(Admin.messages)
    consume_queue = waiting(Admin.consume_queue)
    message_tracks = waiting(Admin.message_tracks)
    consume_directly = waiting(Admin.consume_directly)
    dead_letters = iterating(Admin.dead_letters)
    resend_message = waiting(Admin.resend_message)
    resend_dead_letters = iterating(Admin.resend_dead_letters)
    resume_check = waiting(Admin.resume_check)

    brokers = waiting(Admin.brokers)
    broker_config = waiting(Admin.broker_config)
    set_broker_config = waiting(Admin.set_broker_config)
    runtime_info = waiting(Admin.runtime_info)
    replicas = waiting(Admin.replicas)
    replica_group = waiting(Admin.replica_group)
    set_master = waiting(Admin.set_master)
    elect_master = waiting(Admin.elect_master)
    broker_stats = waiting(Admin.broker_stats)
    ha_status = waiting(Admin.ha_status)
    topic_rates = waiting(Admin.topic_rates)
    export = waiting(Admin.export)
    clean_expired_queues = waiting(Admin.clean_expired_queues)
    delete_expired_logs = waiting(Admin.delete_expired_logs)
    wipe_write_perm = waiting(Admin.wipe_write_perm)
    add_write_perm = waiting(Admin.add_write_perm)
    namesrv_config = waiting(Admin.namesrv_config)
    set_namesrv_config = waiting(Admin.set_namesrv_config)
    kv_get = waiting(Admin.kv_get)
    kv_list = waiting(Admin.kv_list)
    kv_put = waiting(Admin.kv_put)
    kv_delete = waiting(Admin.kv_delete)

    users = waiting(Admin.users)
    user = waiting(Admin.user)
    create_user = waiting(Admin.create_user)
    update_user = waiting(Admin.update_user)
    delete_user = waiting(Admin.delete_user)
    acls = waiting(Admin.acls)
    acl = waiting(Admin.acl)
    create_acl = waiting(Admin.create_acl)
    update_acl = waiting(Admin.update_acl)
    delete_acl = waiting(Admin.delete_acl)
    set_acl_account = waiting(Admin.set_acl_account)
    delete_acl_account = waiting(Admin.delete_acl_account)
    set_white_addresses = waiting(Admin.set_white_addresses)
    acl_versions = waiting(Admin.acl_versions)
