"""The requests that a broker serves, one row per code. To add one, write its handler and its row.

    handler      the method of a concern that serves it
    permission   the permission that it needs if access control is on (access.needs)
    wait         the setting that limits its wait before it is served (messages.protection)
    fast_port    whether the broker's second port serves it too
    body_size    maximum bytes of its body; None: the handler checks the size

Source: BrokerController.registerProcessor and initialRequestPipeline, apache/rocketmq 5.3.3 broker/.
"""

from collections.abc import Callable, Mapping
from enum import Enum, auto
from typing import Final, NamedTuple

from mqtrail.wire import Handler, Peer, RemotingCommand, RequestCode, Work

from .access import Permission
from .access.needs import (
    BOTH,
    CHANGE_ACCOUNTS,
    CHANGE_CLUSTER_5,
    CHANGE_TOPIC_AND_GROUP,
    KNOWN_USER,
    NEVER,
    POPPED,
    QUEUE,
    READ_ACCOUNTS,
    READ_CLUSTER,
    READ_CLUSTER_5,
    READ_GROUP,
    READ_TOPIC,
    READ_TOPIC_AND_GROUP,
    SEND,
    USERS,
    acks,
    assignment,
    consumed_directly,
    consumes,
    each,
    ended,
    found_in,
    group,
    heartbeat,
    listed,
    locks,
    made_group,
    made_groups,
    made_topics,
    permission,
    pops,
    recalled,
    replies,
    resumed,
    sends,
    sent_back,
    topic,
    transaction,
    viewed,
)
from .bounds import BODY_SIZE_MAX, HEARTBEAT_SIZE_MAX, LINES_SIZE_MAX, LIST_SIZE_MAX
from .concerns import Concerns
from .messages import Wait

Code = RequestCode


class AtSlave(Enum):
    """What a slave does with a request."""

    SERVED = auto()
    READ = auto()  # served if the slave may be read
    REFUSED = auto()  # it writes messages


class Request(NamedTuple):
    """One row. is_bounded: the work of its job depends on its body alone (wire.Jobs)."""

    handler: Callable[[Concerns], Handler]
    permission: Permission
    wait: Wait = Wait.ADMIN
    fast_port: bool = True
    body_size: int | None = BODY_SIZE_MAX
    at_slave: AtSlave = AtSlave.SERVED
    is_bounded: bool = False


def _reset(c: Concerns) -> Handler:
    """222: reset offsets in the broker or through live consumers. The setting can change at run time."""

    def reset(peer: Peer, request: RemotingCommand, now_ms: int) -> Work:
        serve = c.groups.reset if c.config.server_side_reset else c.surveys.reset
        return serve(peer, request, now_ms)

    return c.job(reset)


REQUESTS: Final[Mapping[int, Request]] = {
    # Messages in.
    Code.SEND_MESSAGE: Request(
        lambda c: c.send.handle, SEND, Wait.SEND, body_size=None, at_slave=AtSlave.REFUSED, is_bounded=True
    ),
    Code.SEND_MESSAGE_V2: Request(
        lambda c: c.send.handle, SEND, Wait.SEND, body_size=None, at_slave=AtSlave.REFUSED, is_bounded=True
    ),
    Code.SEND_BATCH_MESSAGE: Request(
        lambda c: c.send.handle,
        permission(sends, recalled),
        Wait.SEND,
        body_size=None,
        at_slave=AtSlave.REFUSED,
        is_bounded=True,
    ),
    Code.SEND_REPLY_MESSAGE: Request(
        lambda c: c.replies.handle,
        permission(replies, opened=BOTH),
        Wait.UNLIMITED,
        body_size=None,
        at_slave=AtSlave.REFUSED,
    ),
    Code.SEND_REPLY_MESSAGE_V2: Request(
        lambda c: c.replies.handle,
        permission(replies, opened=BOTH),
        Wait.UNLIMITED,
        body_size=None,
        at_slave=AtSlave.REFUSED,
    ),
    Code.RECALL_MESSAGE: Request(
        lambda c: c.timer_requests.recall, permission(topic("Pub")), Wait.SEND, at_slave=AtSlave.REFUSED
    ),
    Code.END_TRANSACTION: Request(
        lambda c: c.transactions.end, permission(transaction, ended), Wait.TRANSACTION, at_slave=AtSlave.REFUSED
    ),
    Code.RESUME_CHECK_HALF_MESSAGE: Request(
        lambda c: c.transactions.resume, permission(topic("Update", optional=True), resumed), at_slave=AtSlave.REFUSED
    ),
    Code.CONSUMER_SEND_MSG_BACK: Request(
        lambda c: c.send_back.handle,
        permission(group("Sub", field="group"), sent_back, NEVER),
        Wait.SEND,
        at_slave=AtSlave.REFUSED,
    ),
    # Messages out.
    Code.PULL_MESSAGE: Request(
        lambda c: c.pull.handle,
        permission(consumes("Sub"), opened=NEVER),
        Wait.PULL,
        fast_port=False,
        at_slave=AtSlave.READ,
    ),
    Code.LITE_PULL_MESSAGE: Request(
        lambda c: c.pull.handle,
        permission(consumes("Sub"), opened=BOTH),
        Wait.LITE_PULL,
        fast_port=False,
        at_slave=AtSlave.READ,
    ),
    Code.QUERY_MESSAGE: Request(
        lambda c: c.job(c.query.by_key), permission(found_in("Sub", "Get"), opened=NEVER), Wait.UNLIMITED
    ),
    Code.VIEW_MESSAGE_BY_ID: Request(
        lambda c: c.query.by_offset, permission(topic("Get", optional=True), viewed), Wait.UNLIMITED
    ),
    Code.CONSUME_MESSAGE_DIRECTLY: Request(
        lambda c: c.forwards.consume_directly,
        permission(each(group("Sub"), topic("Sub", optional=True)), consumed_directly),
    ),
    Code.QUERY_CONSUME_QUEUE: Request(
        lambda c: c.store.queue_entries, permission(each(topic("Get"), group("Get", optional=True)))
    ),
    Code.POP_MESSAGE: Request(
        lambda c: c.pop.messages.handle, permission(pops), Wait.PULL, fast_port=False, at_slave=AtSlave.REFUSED
    ),
    Code.PEEK_MESSAGE: Request(lambda c: c.job(c.pop.notices.peek), permission(pops), Wait.PULL, fast_port=False),
    Code.NOTIFICATION: Request(lambda c: c.pop.notices.notify, permission(pops), fast_port=False),
    Code.POLLING_INFO: Request(lambda c: c.pop.notices.polling_info, permission(consumes("Get")), fast_port=False),
    Code.ACK_MESSAGE: Request(lambda c: c.pop.acks.ack, POPPED, Wait.ACK, at_slave=AtSlave.REFUSED),
    Code.BATCH_ACK_MESSAGE: Request(
        lambda c: c.pop.acks.batch,
        permission(acks, opened=BOTH),
        Wait.ACK,
        body_size=LIST_SIZE_MAX,
        at_slave=AtSlave.REFUSED,
    ),
    Code.CHANGE_MESSAGE_INVISIBLETIME: Request(
        lambda c: c.pop.acks.change_invisible, POPPED, Wait.ACK, at_slave=AtSlave.REFUSED
    ),
    # Offsets.
    Code.SEARCH_OFFSET_BY_TIMESTAMP: Request(lambda c: c.offsets.search, QUEUE),
    Code.GET_MAX_OFFSET: Request(lambda c: c.offsets.max, QUEUE),
    Code.GET_MIN_OFFSET: Request(lambda c: c.offsets.min, QUEUE),
    Code.GET_EARLIEST_MSG_STORETIME: Request(lambda c: c.offsets.earliest, QUEUE),
    Code.QUERY_CONSUMER_OFFSET: Request(lambda c: c.offsets.query, permission(consumes("Sub", "Get")), Wait.UNLIMITED),
    Code.UPDATE_CONSUMER_OFFSET: Request(
        lambda c: c.offsets.update, permission(consumes("Sub", "Update"), opened=NEVER), Wait.UNLIMITED
    ),
    Code.GET_ALL_CONSUMER_OFFSET: Request(lambda c: c.job(c.offsets.all_consumer_offsets), READ_CLUSTER_5),
    Code.GET_ALL_DELAY_OFFSET: Request(lambda c: c.offsets.all_delay_offsets, READ_CLUSTER_5),
    Code.INVOKE_BROKER_TO_RESET_OFFSET: Request(_reset, CHANGE_TOPIC_AND_GROUP),
    Code.INVOKE_BROKER_TO_GET_CONSUMER_STATUS: Request(lambda c: c.surveys.positions, READ_TOPIC_AND_GROUP),
    Code.QUERY_CONSUME_TIME_SPAN: Request(lambda c: c.job(c.group_offsets.time_span), READ_TOPIC_AND_GROUP),
    Code.QUERY_CORRECTION_OFFSET: Request(
        lambda c: c.job(c.group_offsets.corrections),
        permission(
            each(
                topic("Get"),
                group("Get", field="compareGroup"),
                listed("Get", field="filterGroups", separator=",", kind="Group"),
            )
        ),
    ),
    Code.CLONE_GROUP_OFFSET: Request(
        lambda c: c.job(c.group_offsets.clone),
        permission(
            each(
                topic("Update", optional=True),
                group("Update", field="destGroup"),
                group("Get", "Update", field="srcGroup"),
            )
        ),
    ),
    # Clients.
    Code.HEART_BEAT: Request(
        lambda c: c.job(c.clients.heartbeat),
        permission(heartbeat, opened=NEVER),
        Wait.HEARTBEAT,
        body_size=HEARTBEAT_SIZE_MAX,
        is_bounded=True,
    ),
    # It removes only registrations of its own connection.
    Code.UNREGISTER_CLIENT: Request(
        lambda c: c.clients.unregister, permission(group("Sub", optional=True), opened=NEVER), Wait.UNLIMITED
    ),
    # It compiles an expression and returns no data.
    Code.CHECK_CLIENT_CONFIG: Request(lambda c: c.clients.check_config, KNOWN_USER, Wait.UNLIMITED),
    Code.GET_CONSUMER_LIST_BY_GROUP: Request(
        lambda c: c.clients.consumer_ids, permission(group("Sub", "Get"), opened=NEVER), Wait.UNLIMITED
    ),
    Code.LOCK_BATCH_MQ: Request(
        lambda c: c.job(c.clients.lock), permission(locks), body_size=LIST_SIZE_MAX, is_bounded=True
    ),
    Code.UNLOCK_BATCH_MQ: Request(
        lambda c: c.job(c.clients.unlock), permission(locks), body_size=LIST_SIZE_MAX, is_bounded=True
    ),
    Code.QUERY_ASSIGNMENT: Request(
        lambda c: c.pop.assignments.query, permission(assignment, opened=BOTH), Wait.UNLIMITED
    ),
    Code.SET_MESSAGE_REQUEST_MODE: Request(lambda c: c.pop.assignments.set_mode, CHANGE_CLUSTER_5, Wait.UNLIMITED),
    Code.GET_ALL_MESSAGE_REQUEST_MODE: Request(lambda c: c.pop.assignments.all_modes, READ_CLUSTER_5),
    Code.GET_CONSUMER_CONNECTION_LIST: Request(lambda c: c.job(c.stats.consumers), READ_GROUP),
    Code.GET_PRODUCER_CONNECTION_LIST: Request(lambda c: c.job(c.stats.producers), READ_CLUSTER),
    Code.GET_ALL_PRODUCER_INFO: Request(lambda c: c.job(c.stats.all_producers), READ_CLUSTER),
    Code.GET_CONSUMER_RUNNING_INFO: Request(lambda c: c.forwards.running_info, READ_GROUP),
    # Topics and groups.
    Code.UPDATE_AND_CREATE_TOPIC: Request(lambda c: c.topics.update, permission(topic("Create"), opened=NEVER)),
    Code.UPDATE_AND_CREATE_TOPIC_LIST: Request(
        lambda c: c.job(c.topics.update_list),
        permission(made_topics, opened=BOTH),
        body_size=LIST_SIZE_MAX,
        is_bounded=True,
    ),
    Code.DELETE_TOPIC_IN_BROKER: Request(lambda c: c.job(c.topics.delete), permission(topic("Delete"), opened=NEVER)),
    Code.GET_TOPIC_CONFIG: Request(lambda c: c.topics.one, READ_TOPIC),
    Code.GET_ALL_TOPIC_CONFIG: Request(lambda c: c.job(c.topics.all), READ_CLUSTER_5),
    Code.GET_SYSTEM_TOPIC_LIST_FROM_BROKER: Request(lambda c: c.topics.system, READ_CLUSTER_5),
    Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: Request(lambda c: c.groups.update, permission(made_group, opened=USERS)),
    Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: Request(
        lambda c: c.job(c.groups.update_list),
        permission(made_groups, opened=BOTH),
        body_size=LIST_SIZE_MAX,
        is_bounded=True,
    ),
    Code.DELETE_SUBSCRIPTIONGROUP: Request(
        lambda c: c.job(c.groups.delete), permission(group("Delete", field="groupName"), opened=NEVER)
    ),
    Code.GET_SUBSCRIPTIONGROUP_CONFIG: Request(lambda c: c.groups.one, permission(group("Get", field="group"))),
    Code.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: Request(lambda c: c.job(c.groups.all), READ_CLUSTER_5),
    Code.QUERY_TOPIC_CONSUME_BY_WHO: Request(lambda c: c.job(c.groups.consumers_of_topic), READ_TOPIC),
    Code.QUERY_TOPICS_BY_CONSUMER: Request(
        lambda c: c.job(c.groups.topics_of_group), permission(group("Get", field="group"))
    ),
    Code.QUERY_SUBSCRIPTION_BY_CONSUMER: Request(lambda c: c.groups.subscription, READ_TOPIC_AND_GROUP),
    Code.UPDATE_AND_GET_GROUP_FORBIDDEN: Request(lambda c: c.group_offsets.forbid, CHANGE_TOPIC_AND_GROUP),
    Code.GET_TOPIC_STATS_INFO: Request(lambda c: c.job(c.stats.topic), READ_TOPIC),
    Code.GET_CONSUME_STATS: Request(
        lambda c: c.job(c.stats.group),
        permission(
            each(
                group("Get"),
                topic("Get", optional=True),
                listed("Get", field="topicList", separator=";", kind="Topic"),
            )
        ),
    ),
    # The broker.
    Code.GET_BROKER_CONSUME_STATS: Request(lambda c: c.job(c.stats.broker_groups), READ_CLUSTER),
    Code.VIEW_BROKER_STATS_DATA: Request(lambda c: c.stats.windows, READ_CLUSTER),
    Code.GET_BROKER_RUNTIME_INFO: Request(lambda c: c.stats.runtime, READ_CLUSTER_5),
    Code.GET_BROKER_CONFIG: Request(lambda c: c.settings.show, READ_ACCOUNTS),
    Code.UPDATE_BROKER_CONFIG: Request(lambda c: c.settings.update, CHANGE_ACCOUNTS, body_size=LINES_SIZE_MAX),
    Code.GET_TIMER_CHECK_POINT: Request(lambda c: c.timer_requests.checkpoint, READ_CLUSTER_5),
    Code.GET_TIMER_METRICS: Request(lambda c: c.timer_requests.metrics, READ_CLUSTER_5),
    Code.CLEAN_EXPIRED_CONSUMEQUEUE: Request(lambda c: c.job(c.store.clean_expired_queues), CHANGE_CLUSTER_5),
    Code.CLEAN_UNUSED_TOPIC: Request(lambda c: c.job(c.store.clean_unused_topics), CHANGE_CLUSTER_5),
    Code.DELETE_EXPIRED_COMMITLOG: Request(lambda c: c.job(c.store.delete_expired_log), CHANGE_CLUSTER_5),
    Code.CHECK_ROCKSDB_CQ_WRITE_PROGRESS: Request(lambda c: c.store.refuse_rocksdb, READ_CLUSTER_5),
    Code.EXPORT_ROCKSDB_CONFIG_TO_JSON: Request(lambda c: c.store.refuse_rocksdb, READ_CLUSTER_5),
    Code.UPDATE_COLD_DATA_FLOW_CTR_CONFIG: Request(
        lambda c: c.store.set_cold_thresholds, CHANGE_CLUSTER_5, body_size=LINES_SIZE_MAX
    ),
    Code.REMOVE_COLD_DATA_FLOW_CTR_CONFIG: Request(lambda c: c.store.drop_cold_threshold, CHANGE_CLUSTER_5),
    Code.GET_COLD_DATA_FLOW_CTR_INFO: Request(lambda c: c.store.cold_data, READ_CLUSTER_5),
    Code.SET_COMMITLOG_READ_MODE: Request(lambda c: c.store.set_read_ahead, CHANGE_CLUSTER_5),
    Code.NOTIFY_MIN_BROKER_ID_CHANGE: Request(lambda c: c.replicas.smallest_id_changed, CHANGE_CLUSTER_5),
    Code.EXCHANGE_BROKER_HA_INFO: Request(lambda c: c.replicas.exchange_places, CHANGE_CLUSTER_5),
    Code.GET_BROKER_HA_STATUS: Request(lambda c: c.replicas.status, READ_CLUSTER_5),
    Code.RESET_MASTER_FLUSH_OFFSET: Request(lambda c: c.replicas.reset_flushed, CHANGE_CLUSTER_5),
    Code.GET_BROKER_EPOCH_CACHE: Request(lambda c: c.replicas.epochs, READ_CLUSTER_5),
    Code.NOTIFY_BROKER_ROLE_CHANGED: Request(lambda c: c.replicas.role_changed, CHANGE_CLUSTER_5),
    # Accounts, users and policies: never opened.
    Code.UPDATE_AND_CREATE_ACL_CONFIG: Request(lambda c: c.acl.update, CHANGE_ACCOUNTS),
    Code.DELETE_ACL_CONFIG: Request(lambda c: c.acl.delete, CHANGE_ACCOUNTS),
    Code.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG: Request(lambda c: c.acl.set_white, CHANGE_ACCOUNTS),
    Code.GET_BROKER_CLUSTER_ACL_INFO: Request(lambda c: c.acl.versions, READ_ACCOUNTS),
    Code.GET_BROKER_CLUSTER_ACL_CONFIG: Request(lambda c: c.acl.show, READ_ACCOUNTS),
    Code.AUTH_CREATE_USER: Request(lambda c: c.auth.create_user, CHANGE_ACCOUNTS),
    Code.AUTH_UPDATE_USER: Request(lambda c: c.auth.update_user, CHANGE_ACCOUNTS),
    Code.AUTH_DELETE_USER: Request(lambda c: c.auth.delete_user, CHANGE_ACCOUNTS),
    Code.AUTH_GET_USER: Request(lambda c: c.auth.get_user, READ_ACCOUNTS),
    Code.AUTH_LIST_USER: Request(lambda c: c.job(c.auth.list_users), READ_ACCOUNTS),
    Code.AUTH_CREATE_ACL: Request(lambda c: c.auth.put_acl, CHANGE_ACCOUNTS),
    Code.AUTH_UPDATE_ACL: Request(lambda c: c.auth.put_acl, CHANGE_ACCOUNTS),
    Code.AUTH_DELETE_ACL: Request(lambda c: c.auth.delete_acl, CHANGE_ACCOUNTS),
    Code.AUTH_GET_ACL: Request(lambda c: c.auth.get_acl, READ_ACCOUNTS),
    Code.AUTH_LIST_ACL: Request(lambda c: c.job(c.auth.list_acls), READ_ACCOUNTS),
}

PERMISSIONS: Final = {code: row.permission for code, row in REQUESTS.items()}
BODY_SIZES: Final = {code: row.body_size for code, row in REQUESTS.items()}
WAITS: Final = {code: row.wait for code, row in REQUESTS.items()}
OWN_PORT_CODES: Final = frozenset(code for code, row in REQUESTS.items() if not row.fast_port)
"""Codes that the fast port rejects."""
BOUNDED_CODES: Final = frozenset(code for code, row in REQUESTS.items() if row.is_bounded)
READ_CODES: Final = frozenset(code for code, row in REQUESTS.items() if row.at_slave is AtSlave.READ)
MASTER_CODES: Final = frozenset(code for code, row in REQUESTS.items() if row.at_slave is AtSlave.REFUSED)
