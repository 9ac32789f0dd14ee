"""The permission table: what each request code needs, for users and policies (5.x) and for ACL files (4.9) alike.

A row says what a request needs by what it names, and what more by what it touches: the record at the offset it names,
the half message it ends. A code without a row is refused, except to Super users and admins. Every code that the broker
serves has a row (tests/broker/access/test_matrix.py).

    actions on a resource     5.x: as they are       4.9: Pub is PUB, Sub and Get are SUB, others need admin: true
    several actions           one of them            the weakest of them
    a cluster                 Get or Update          admin: true

Apache's brokers ask for less in many places: 5.3.3 of a known user, 4.9.8 of a valid signature. `opened` names the
dialects in which a row is not asked for at all when aclLikeApache is set; `touches` is not asked for then either.

Source: DefaultAuthorizationContextBuilder and the @RocketMQAction of header classes, apache/rocketmq 5.3.3;
PlainAccessValidator.parse, Permission, apache/rocketmq acl/ of 4.9.8.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from enum import StrEnum
from typing import Final, NamedTuple

from mqtrail.wire import (
    HALF_TOPIC,
    RETRY_PREFIX,
    BatchAckBody,
    BodyError,
    ConsumeMessageDirectlyHeader,
    EndTransactionHeader,
    HeaderError,
    HeartbeatData,
    IdError,
    LockBatchBody,
    NoPermission,
    QueryAssignmentBody,
    RecordError,
    RemotingCommand,
    RequestCode,
    ResumeCheckHalfMessageHeader,
    SendBackHeader,
    SubscriptionGroupConfig,
    SubscriptionGroupList,
    TopicConfigList,
    ViewMessageHeader,
    decode_head,
    find_property,
    parse_offset_msg_id,
    sent_properties,
    sent_topic,
    topic_of_marker,
)

from ..bounds import HEARTBEAT_SIZE_MAX
from .policies import Resource, topic_resource
from .scene import Scene

Code = RequestCode


class Dialect(StrEnum):
    """The two kinds of access control."""

    USERS = "5.x"
    FILES = "4.9"


class Need(NamedTuple):
    """One of actions on resource has to be allowed."""

    resource: Resource
    actions: tuple[str, ...]


Asks = Callable[[RemotingCommand, Scene], Iterable[Need]]


class Row(NamedTuple):
    """One code. opened: the dialects in which aclLikeApache lets every known user send it."""

    needs: Asks
    touches: Asks
    opened: frozenset[Dialect]


def needs_of(command: RemotingCommand, scene: Scene, dialect: Dialect) -> Iterator[Need]:
    """Yield all that a request needs, what it names before what it touches. NoPermission: no row, or it does not say.

    A record is looked up only by who goes on to ask for what it needs, so that a refused request reads nothing.
    """
    row = TABLE.get(command.code)
    if row is None:
        if scene.like_apache:
            return
        raise NoPermission(
            f"found request code {command.code}, which has no row in the permission table: expected a Super user or an "
            "admin account"
        )
    if scene.like_apache and dialect in row.opened:
        return
    try:
        yield from row.needs(command, scene)
        if not scene.like_apache:
            yield from row.touches(command, scene)
    except (BodyError, HeaderError, IdError, RecordError) as error:
        raise NoPermission(f"parse authorization context error: {error}") from error


# What a request names.


def _nothing(command: RemotingCommand, scene: Scene) -> Iterable[Need]:
    return ()


def _topic(*actions: str, optional: bool = False) -> Asks:
    """Ask for the topic that a field names; of an optional field only where it is there."""

    def needs(command: RemotingCommand, scene: Scene) -> Iterator[Need]:
        name = command.ext.get("topic", "")
        if name or not optional:
            yield Need(topic_resource(name), actions)

    return needs


def _group(*actions: str, field: str = "consumerGroup", optional: bool = False) -> Asks:
    def needs(command: RemotingCommand, scene: Scene) -> Iterator[Need]:
        name = command.ext.get(field, "")
        if name or not optional:
            yield Need(Resource("Group", name), actions)

    return needs


def _list(*actions: str, field: str, separator: str, kind: str) -> Asks:
    """Ask for each name of a field that lists them."""

    def needs(command: RemotingCommand, scene: Scene) -> Iterator[Need]:
        for name in filter(None, command.ext.get(field, "").split(separator)):
            yield Need(topic_resource(name) if kind == "Topic" else Resource(kind, name.strip()), actions)

    return needs


def _cluster(*actions: str) -> Asks:
    return lambda command, scene: (Need(Resource("Cluster", scene.cluster), actions),)


def _all(*asks: Asks) -> Asks:
    return lambda command, scene: (need for ask in asks for need in ask(command, scene))


def _consumed(topic: str, group: str, actions: tuple[str, ...], scene: Scene) -> Iterator[Need]:
    """Yield what a group needs that consumes a topic, or one of its own retry topics; another's belongs to the other.

    %RETRY%group_topic and %RETRY%group+topic hold what the group popped of a topic. The first may also be the retry
    topic of a group named group_topic; where there is such a group, it is.
    """
    yield Need(Resource("Group", group), actions)
    if not topic.startswith(RETRY_PREFIX):
        yield Need(Resource("Topic", topic), actions)
        return
    owner = topic[len(RETRY_PREFIX) :]
    if owner == group or scene.like_apache:
        return
    if owner.startswith((f"{group}+", f"{group}_")) and not scene.has_group(owner):
        yield Need(topic_resource(owner[len(group) + 1 :]), actions)
        return
    yield Need(Resource("Group", owner), actions)


def _consumes(*actions: str) -> Asks:
    return lambda command, scene: _consumed(
        command.ext.get("topic", ""), command.ext.get("consumerGroup", ""), actions, scene
    )


def _pops(command: RemotingCommand, scene: Scene) -> Iterator[Need]:
    """A pop reads %RETRY%group_topic as well, which is the retry topic of a group of that name where there is one."""
    topic, group = command.ext.get("topic", ""), command.ext.get("consumerGroup", "")
    yield from _consumed(topic, group, ("Sub",), scene)
    if scene.has_group(f"{group}_{topic}") and not scene.like_apache:
        yield Need(Resource("Group", f"{group}_{topic}"), ("Sub",))


def _send(command: RemotingCommand, scene: Scene) -> Iterator[Need]:
    """A topic's sends need Pub on it; a retry topic's Sub on the group whose it is, whatever group the sender names."""
    topic = sent_topic(command.ext)
    if topic.startswith(RETRY_PREFIX):
        yield Need(topic_resource(topic), ("Sub",))
    elif topic in scene.own_topics and not scene.like_apache:
        yield Need(Resource("Cluster", scene.cluster), ("Update",))
    else:
        yield Need(Resource("Topic", topic), ("Pub",))


def _transaction(command: RemotingCommand, scene: Scene) -> Iterator[Need]:
    """The topic that a field names. A client that was asked (39) names the half topic: it repeats what it was told."""
    name = command.ext.get("topic", "")
    if name and name != HALF_TOPIC:
        yield Need(topic_resource(name), ("Pub",))


def _heartbeat(command: RemotingCommand, scene: Scene) -> Iterator[Need]:
    """Consumers need Sub; producers nothing here: whom a half message is shown to is asked when it is."""
    if len(command.body) > HEARTBEAT_SIZE_MAX:
        raise BodyError(f"found a heartbeat of {len(command.body)} bytes, expected at most {HEARTBEAT_SIZE_MAX}")
    for consumer in HeartbeatData.decode(command.body).consumer_data_set:
        yield Need(Resource("Group", consumer.group_name), ("Sub",))
        for subscription in consumer.subscription_data_set:
            yield from _consumed(subscription.topic, consumer.group_name, ("Sub",), scene)


def _locks(command: RemotingCommand, scene: Scene) -> Iterator[Need]:
    body = LockBatchBody.decode(command.body)
    yield Need(Resource("Group", body.consumer_group), ("Sub",))
    for topic in dict.fromkeys(queue.topic for queue in body.mq_set):
        yield from _consumed(topic, body.consumer_group, ("Sub",), scene)


def _assignment(command: RemotingCommand, scene: Scene) -> Iterator[Need]:
    body = QueryAssignmentBody.decode(command.body)
    return _consumed(body.topic, body.consumer_group, ("Sub",), scene)


def _acks(command: RemotingCommand, scene: Scene) -> Iterator[Need]:
    acks = BatchAckBody.decode(command.body or b"{}").acks
    for group, topic in dict.fromkeys((ack.group, topic_of_marker(ack.marker, ack.topic, ack.group)) for ack in acks):
        yield from _consumed(topic, group, ("Sub",), scene)


def _made_topics(command: RemotingCommand, scene: Scene) -> Iterator[Need]:
    for config in TopicConfigList.decode(command.body).topic_config_list:
        yield Need(topic_resource(config.topic), ("Create",))


def _made_group(command: RemotingCommand, scene: Scene) -> Iterator[Need]:
    yield Need(Resource("Group", SubscriptionGroupConfig.decode(command.body).group_name), ("Create", "Update"))


def _made_groups(command: RemotingCommand, scene: Scene) -> Iterator[Need]:
    for config in SubscriptionGroupList.decode(command.body).group_config_list:
        yield Need(Resource("Group", config.group_name), ("Create", "Update"))


# What a request touches: known after a look at what it points at.


def _recalled(command: RemotingCommand, scene: Scene) -> Iterator[Need]:
    """A message that recalls another one, of the topic that TIMER_DEL_UNIQKEY names (topic+id), needs Pub there."""
    key = find_property(sent_properties(command.ext).encode("utf-8", "replace"), b"TIMER_DEL_UNIQKEY")
    if key is not None:
        yield Need(topic_resource(key.decode("utf-8", "replace").partition("+")[0]), ("Pub",))


def _viewed(command: RemotingCommand, scene: Scene) -> Iterator[Need]:
    place = scene.place(ViewMessageHeader.from_ext(command.ext).offset)
    if place is not None:
        for topic in dict.fromkeys((place.topic, place.meant_for)):
            yield Need(topic_resource(topic), ("Get",))


def _sent_back(command: RemotingCommand, scene: Scene) -> Iterator[Need]:
    header = SendBackHeader.from_ext(command.ext)
    place = scene.place(header.offset)
    if place is not None:
        for topic in dict.fromkeys((place.topic, place.meant_for)):
            yield from _consumed(topic, header.group, ("Sub",), scene)


def _consumed_directly(command: RemotingCommand, scene: Scene) -> Iterator[Need]:
    """The stored message that the id names; without an id the record in the body, which the consumer is given."""
    header = ConsumeMessageDirectlyHeader.from_ext(command.ext)
    if not header.msg_id:
        yield from _consumed(decode_head(command.body).topic, header.consumer_group, ("Sub",), scene)
        return
    place = scene.place(parse_offset_msg_id(header.msg_id)[1])
    if place is not None:
        for topic in dict.fromkeys((place.topic, place.meant_for)):
            yield from _consumed(topic, header.consumer_group, ("Sub",), scene)


def _ended(command: RemotingCommand, scene: Scene) -> Iterator[Need]:
    """The end of a half message needs Pub on the topic that the half message is meant for."""
    place = scene.place(EndTransactionHeader.from_ext(command.ext).commit_log_offset)
    if place is not None:
        yield Need(topic_resource(place.meant_for), ("Pub",))


def _resumed(command: RemotingCommand, scene: Scene) -> Iterator[Need]:
    place = scene.place(parse_offset_msg_id(ResumeCheckHalfMessageHeader.from_ext(command.ext).msg_id or "")[1])
    if place is not None:
        for topic in dict.fromkeys((place.meant_for, place.real_topic or place.meant_for)):
            yield Need(topic_resource(topic), ("Update",))


# The table.

_USERS, _FILES = frozenset({Dialect.USERS}), frozenset({Dialect.FILES})
_BOTH, _NONE = _USERS | _FILES, frozenset[Dialect]()


def _row(needs: Asks, touches: Asks = _nothing, opened: frozenset[Dialect] = _FILES) -> Row:
    """Return a row. Most codes are known to 5.3.3's authorization, and not to 4.9.8's."""
    return Row(needs, touches, opened)


_KNOWN_USER: Final = _row(_nothing)
_READ_CLUSTER: Final = _row(_cluster("Get"))
_READ_CLUSTER_5: Final = _row(_cluster("Get"), opened=_BOTH)
_CHANGE_CLUSTER_5: Final = _row(_cluster("Update"), opened=_BOTH)
_READ_ACCOUNTS: Final = _row(_cluster("Get"), opened=_NONE)
_CHANGE_ACCOUNTS: Final = _row(_cluster("Update"), opened=_NONE)
_QUEUE: Final = _row(_topic("Sub", "Get"))
_POPPED: Final = _row(_consumes("Sub"))

TABLE: Final[Mapping[int, Row]] = {
    # Messages in.
    Code.SEND_MESSAGE: _row(_send, _recalled, _NONE),
    Code.SEND_MESSAGE_V2: _row(_send, _recalled, _NONE),
    Code.SEND_BATCH_MESSAGE: _row(_send, _recalled),
    Code.SEND_REPLY_MESSAGE: _row(_send, opened=_BOTH),
    Code.SEND_REPLY_MESSAGE_V2: _row(_send, opened=_BOTH),
    Code.RECALL_MESSAGE: _row(_topic("Pub")),
    Code.END_TRANSACTION: _row(_transaction, _ended),
    Code.RESUME_CHECK_HALF_MESSAGE: _row(_topic("Update", optional=True), _resumed),
    Code.CONSUMER_SEND_MSG_BACK: _row(_group("Sub", field="group"), _sent_back, _NONE),
    # Messages out.
    Code.PULL_MESSAGE: _row(_consumes("Sub"), opened=_NONE),
    Code.LITE_PULL_MESSAGE: _row(_consumes("Sub"), opened=_BOTH),
    Code.QUERY_MESSAGE: _row(_topic("Sub", "Get"), opened=_NONE),
    Code.VIEW_MESSAGE_BY_ID: _row(_topic("Get", optional=True), _viewed),
    Code.CONSUME_MESSAGE_DIRECTLY: _row(_all(_group("Sub"), _topic("Sub", optional=True)), _consumed_directly),
    Code.QUERY_CONSUME_QUEUE: _row(_all(_topic("Get"), _group("Get", optional=True))),
    Code.POP_MESSAGE: _row(_pops),
    Code.PEEK_MESSAGE: _row(_pops),
    Code.NOTIFICATION: _row(_pops),
    Code.POLLING_INFO: _row(_consumes("Get")),
    Code.ACK_MESSAGE: _POPPED,
    Code.BATCH_ACK_MESSAGE: _row(_acks, opened=_BOTH),
    Code.CHANGE_MESSAGE_INVISIBLETIME: _POPPED,
    # Offsets.
    Code.SEARCH_OFFSET_BY_TIMESTAMP: _QUEUE,
    Code.GET_MAX_OFFSET: _QUEUE,
    Code.GET_MIN_OFFSET: _QUEUE,
    Code.GET_EARLIEST_MSG_STORETIME: _QUEUE,
    Code.QUERY_CONSUMER_OFFSET: _row(_consumes("Sub", "Get")),
    Code.UPDATE_CONSUMER_OFFSET: _row(_consumes("Sub", "Update"), opened=_NONE),
    Code.GET_ALL_CONSUMER_OFFSET: _READ_CLUSTER_5,
    Code.GET_ALL_DELAY_OFFSET: _READ_CLUSTER_5,
    Code.INVOKE_BROKER_TO_RESET_OFFSET: _row(_all(_topic("Update"), _group("Update", field="group"))),
    Code.INVOKE_BROKER_TO_GET_CONSUMER_STATUS: _row(_all(_topic("Get"), _group("Get", field="group"))),
    Code.QUERY_CONSUME_TIME_SPAN: _row(_all(_topic("Get"), _group("Get", field="group"))),
    Code.QUERY_CORRECTION_OFFSET: _row(
        _all(
            _topic("Get"),
            _group("Get", field="compareGroup"),
            _list("Get", field="filterGroups", separator=",", kind="Group"),
        )
    ),
    Code.CLONE_GROUP_OFFSET: _row(
        _all(
            _topic("Update", optional=True),
            _group("Update", field="destGroup"),
            _group("Get", "Update", field="srcGroup"),
        )
    ),
    # Clients.
    Code.HEART_BEAT: _row(_heartbeat, opened=_NONE),
    Code.UNREGISTER_CLIENT: _row(_group("Sub", optional=True), opened=_NONE),  # of this connection alone
    Code.CHECK_CLIENT_CONFIG: _KNOWN_USER,  # compiles an expression, and shows nothing
    Code.GET_CONSUMER_LIST_BY_GROUP: _row(_group("Sub", "Get"), opened=_NONE),
    Code.LOCK_BATCH_MQ: _row(_locks),
    Code.UNLOCK_BATCH_MQ: _row(_locks),
    Code.QUERY_ASSIGNMENT: _row(_assignment, opened=_BOTH),
    Code.SET_MESSAGE_REQUEST_MODE: _CHANGE_CLUSTER_5,
    Code.GET_ALL_MESSAGE_REQUEST_MODE: _READ_CLUSTER_5,
    Code.GET_CONSUMER_CONNECTION_LIST: _row(_group("Get")),
    Code.GET_PRODUCER_CONNECTION_LIST: _READ_CLUSTER,
    Code.GET_ALL_PRODUCER_INFO: _READ_CLUSTER,
    Code.GET_CONSUMER_RUNNING_INFO: _row(_group("Get")),
    # Topics and groups.
    Code.UPDATE_AND_CREATE_TOPIC: _row(_topic("Create"), opened=_NONE),
    Code.UPDATE_AND_CREATE_TOPIC_LIST: _row(_made_topics, opened=_BOTH),
    Code.DELETE_TOPIC_IN_BROKER: _row(_topic("Delete"), opened=_NONE),
    Code.GET_TOPIC_CONFIG: _row(_topic("Get")),
    Code.GET_ALL_TOPIC_CONFIG: _READ_CLUSTER_5,
    Code.GET_SYSTEM_TOPIC_LIST_FROM_BROKER: _READ_CLUSTER_5,
    Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: _row(_made_group, opened=_USERS),
    Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: _row(_made_groups, opened=_BOTH),
    Code.DELETE_SUBSCRIPTIONGROUP: _row(_group("Delete", field="groupName"), opened=_NONE),
    Code.GET_SUBSCRIPTIONGROUP_CONFIG: _row(_group("Get", field="group")),
    Code.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: _READ_CLUSTER_5,
    Code.QUERY_TOPIC_CONSUME_BY_WHO: _row(_topic("Get")),
    Code.QUERY_TOPICS_BY_CONSUMER: _row(_group("Get", field="group")),
    Code.QUERY_SUBSCRIPTION_BY_CONSUMER: _row(_all(_topic("Get"), _group("Get", field="group"))),
    Code.UPDATE_AND_GET_GROUP_FORBIDDEN: _row(_all(_topic("Update"), _group("Update", field="group"))),
    Code.GET_TOPIC_STATS_INFO: _row(_topic("Get")),
    Code.GET_CONSUME_STATS: _row(
        _all(
            _group("Get"),
            _topic("Get", optional=True),
            _list("Get", field="topicList", separator=";", kind="Topic"),
        )
    ),
    # The broker.
    Code.GET_BROKER_CONSUME_STATS: _READ_CLUSTER,
    Code.VIEW_BROKER_STATS_DATA: _READ_CLUSTER,
    Code.GET_BROKER_RUNTIME_INFO: _READ_CLUSTER_5,
    Code.GET_BROKER_CONFIG: _READ_ACCOUNTS,
    Code.UPDATE_BROKER_CONFIG: _CHANGE_ACCOUNTS,
    Code.GET_TIMER_CHECK_POINT: _READ_CLUSTER_5,
    Code.GET_TIMER_METRICS: _READ_CLUSTER_5,
    Code.CLEAN_EXPIRED_CONSUMEQUEUE: _CHANGE_CLUSTER_5,
    Code.CLEAN_UNUSED_TOPIC: _CHANGE_CLUSTER_5,
    Code.DELETE_EXPIRED_COMMITLOG: _CHANGE_CLUSTER_5,
    Code.CHECK_ROCKSDB_CQ_WRITE_PROGRESS: _READ_CLUSTER_5,
    Code.EXPORT_ROCKSDB_CONFIG_TO_JSON: _READ_CLUSTER_5,
    Code.UPDATE_COLD_DATA_FLOW_CTR_CONFIG: _CHANGE_CLUSTER_5,
    Code.REMOVE_COLD_DATA_FLOW_CTR_CONFIG: _CHANGE_CLUSTER_5,
    Code.GET_COLD_DATA_FLOW_CTR_INFO: _READ_CLUSTER_5,
    Code.SET_COMMITLOG_READ_MODE: _CHANGE_CLUSTER_5,
    Code.NOTIFY_MIN_BROKER_ID_CHANGE: _CHANGE_CLUSTER_5,
    Code.EXCHANGE_BROKER_HA_INFO: _CHANGE_CLUSTER_5,
    Code.GET_BROKER_HA_STATUS: _READ_CLUSTER_5,
    Code.RESET_MASTER_FLUSH_OFFSET: _CHANGE_CLUSTER_5,
    Code.GET_BROKER_EPOCH_CACHE: _READ_CLUSTER_5,
    # Accounts, users and policies: never opened.
    Code.UPDATE_AND_CREATE_ACL_CONFIG: _CHANGE_ACCOUNTS,
    Code.DELETE_ACL_CONFIG: _CHANGE_ACCOUNTS,
    Code.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG: _CHANGE_ACCOUNTS,
    Code.GET_BROKER_CLUSTER_ACL_INFO: _READ_ACCOUNTS,
    Code.GET_BROKER_CLUSTER_ACL_CONFIG: _READ_ACCOUNTS,
    Code.AUTH_CREATE_USER: _CHANGE_ACCOUNTS,
    Code.AUTH_UPDATE_USER: _CHANGE_ACCOUNTS,
    Code.AUTH_DELETE_USER: _CHANGE_ACCOUNTS,
    Code.AUTH_GET_USER: _READ_ACCOUNTS,
    Code.AUTH_LIST_USER: _READ_ACCOUNTS,
    Code.AUTH_CREATE_ACL: _CHANGE_ACCOUNTS,
    Code.AUTH_UPDATE_ACL: _CHANGE_ACCOUNTS,
    Code.AUTH_DELETE_ACL: _CHANGE_ACCOUNTS,
    Code.AUTH_GET_ACL: _READ_ACCOUNTS,
    Code.AUTH_LIST_ACL: _READ_ACCOUNTS,
}
