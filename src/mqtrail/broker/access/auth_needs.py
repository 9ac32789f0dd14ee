"""What a request of 5.x needs: actions on resources, by code.

Most codes name their resources in ext fields (NEEDS); some in their body, or by a rule of their own (SPECIAL). Codes
that are in neither need a known user alone. UNGUARDED are such codes in 5.3.3 that change the broker or show what
others may not see: there every known user may send them, here they need what stands beside them.

Source: DefaultAuthorizationContextBuilder and the @RocketMQAction of header classes, apache/rocketmq 5.3.3.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple

from mqtrail.wire import (
    RETRY_PREFIX,
    BatchAckBody,
    BodyError,
    HeartbeatData,
    LockBatchBody,
    NoPermission,
    RemotingCommand,
    RequestCode,
    SubscriptionGroupConfig,
    SubscriptionGroupList,
    TopicConfigList,
)

from .policies import Resource, group_resource, topic_resource

Code = RequestCode


class Need(NamedTuple):
    """One of actions on resource has to be allowed."""

    resource: Resource
    actions: tuple[str, ...]


class Fields(NamedTuple):
    """Which ext fields name the resources of a code, and the actions. cluster: its cluster where no field is there."""

    actions: tuple[str, ...]
    topics: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()
    cluster: bool = False
    splitter: str = ""  # parts the first of groups, or of topics where there is no group


_GET, _SUB, _PUB, _UPDATE = ("Get",), ("Sub",), ("Pub",), ("Update",)
_TOPIC, _GROUP, _CONSUMER_GROUP = ("topic",), ("group",), ("consumerGroup",)
_CLUSTER_GET = Fields(_GET, cluster=True)
_CLUSTER_UPDATE = Fields(_UPDATE, cluster=True)
_POP = Fields(_SUB, _TOPIC, _CONSUMER_GROUP)

NEEDS: Final[Mapping[int, Fields]] = {
    Code.QUERY_MESSAGE: Fields(("Sub", "Get"), _TOPIC),
    Code.UPDATE_AND_CREATE_TOPIC: Fields(("Create",), _TOPIC),
    Code.SEARCH_OFFSET_BY_TIMESTAMP: Fields(_GET, _TOPIC),
    Code.GET_MAX_OFFSET: Fields(_GET, _TOPIC),
    Code.GET_MIN_OFFSET: Fields(_GET, _TOPIC),
    Code.GET_EARLIEST_MSG_STORETIME: Fields(_GET, _TOPIC),
    Code.VIEW_MESSAGE_BY_ID: Fields(_GET, _TOPIC),
    Code.END_TRANSACTION: Fields(_PUB, _TOPIC),
    Code.GET_TOPIC_STATS_INFO: Fields(_GET, _TOPIC),
    Code.GET_CONSUMER_CONNECTION_LIST: Fields(_GET, (), _CONSUMER_GROUP),
    Code.GET_PRODUCER_CONNECTION_LIST: _CLUSTER_GET,
    Code.DELETE_SUBSCRIPTIONGROUP: Fields(("Delete",), (), ("groupName",)),
    Code.GET_CONSUME_STATS: Fields(_GET, ("topicList", "topic"), _CONSUMER_GROUP, splitter=";"),
    Code.DELETE_TOPIC_IN_BROKER: Fields(("Delete",), _TOPIC),
    Code.INVOKE_BROKER_TO_RESET_OFFSET: Fields(_UPDATE, _TOPIC, _GROUP),
    Code.INVOKE_BROKER_TO_GET_CONSUMER_STATUS: Fields(_GET, _TOPIC, _GROUP),
    Code.QUERY_TOPIC_CONSUME_BY_WHO: Fields(_GET, _TOPIC),
    Code.QUERY_CONSUME_TIME_SPAN: Fields(_GET, _TOPIC, _GROUP),
    Code.GET_CONSUMER_RUNNING_INFO: Fields(_GET, (), _CONSUMER_GROUP),
    Code.QUERY_CORRECTION_OFFSET: Fields(_GET, _TOPIC, ("filterGroups", "compareGroup"), splitter=","),
    Code.CONSUME_MESSAGE_DIRECTLY: Fields(_SUB, _TOPIC, _CONSUMER_GROUP),
    Code.CLONE_GROUP_OFFSET: Fields(_UPDATE, _TOPIC, ("destGroup",)),
    Code.VIEW_BROKER_STATS_DATA: _CLUSTER_GET,
    Code.GET_BROKER_CONSUME_STATS: _CLUSTER_GET,
    Code.QUERY_CONSUME_QUEUE: Fields(_GET, _TOPIC, _CONSUMER_GROUP),
    Code.RESUME_CHECK_HALF_MESSAGE: Fields(_UPDATE, _TOPIC),
    Code.GET_ALL_PRODUCER_INFO: _CLUSTER_GET,
    Code.QUERY_TOPICS_BY_CONSUMER: Fields(_GET, (), _GROUP),
    Code.QUERY_SUBSCRIPTION_BY_CONSUMER: Fields(_GET, _TOPIC, _GROUP),
    Code.GET_TOPIC_CONFIG: Fields(_GET, _TOPIC),
    Code.GET_SUBSCRIPTIONGROUP_CONFIG: Fields(_GET, (), _GROUP),
    Code.UPDATE_AND_GET_GROUP_FORBIDDEN: Fields(_UPDATE, _TOPIC, _GROUP),
    Code.RECALL_MESSAGE: Fields(_PUB, _TOPIC),
    Code.UNREGISTER_CLIENT: Fields(_SUB, (), _CONSUMER_GROUP),
    Code.CONSUMER_SEND_MSG_BACK: Fields(_SUB, (), _GROUP),
    Code.GET_CONSUMER_LIST_BY_GROUP: Fields(("Sub", "Get"), (), _CONSUMER_GROUP),
    Code.AUTH_CREATE_USER: _CLUSTER_UPDATE,
    Code.AUTH_UPDATE_USER: _CLUSTER_UPDATE,
    Code.AUTH_DELETE_USER: _CLUSTER_UPDATE,
    Code.AUTH_GET_USER: _CLUSTER_GET,
    Code.AUTH_LIST_USER: _CLUSTER_GET,
    Code.AUTH_CREATE_ACL: _CLUSTER_UPDATE,
    Code.AUTH_UPDATE_ACL: _CLUSTER_UPDATE,
    Code.AUTH_DELETE_ACL: _CLUSTER_UPDATE,
    Code.AUTH_GET_ACL: _CLUSTER_GET,
    Code.AUTH_LIST_ACL: _CLUSTER_GET,
    Code.POP_MESSAGE: _POP,
    Code.ACK_MESSAGE: _POP,
    Code.PEEK_MESSAGE: _POP,
    Code.CHANGE_MESSAGE_INVISIBLETIME: _POP,
    Code.NOTIFICATION: _POP,
    Code.POLLING_INFO: Fields(_GET, _TOPIC, _CONSUMER_GROUP),
}

UNGUARDED: Final[Mapping[int, Fields]] = {
    Code.UPDATE_BROKER_CONFIG: _CLUSTER_UPDATE,
    Code.GET_BROKER_CONFIG: _CLUSTER_GET,
    Code.CLEAN_EXPIRED_CONSUMEQUEUE: _CLUSTER_UPDATE,
    Code.CLEAN_UNUSED_TOPIC: _CLUSTER_UPDATE,
    Code.DELETE_EXPIRED_COMMITLOG: _CLUSTER_UPDATE,
    Code.SET_MESSAGE_REQUEST_MODE: _CLUSTER_UPDATE,
    Code.UPDATE_AND_CREATE_ACL_CONFIG: _CLUSTER_UPDATE,
    Code.DELETE_ACL_CONFIG: _CLUSTER_UPDATE,
    Code.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG: _CLUSTER_UPDATE,
    Code.GET_BROKER_CLUSTER_ACL_CONFIG: _CLUSTER_GET,
    Code.LITE_PULL_MESSAGE: Fields(_SUB, _TOPIC, _CONSUMER_GROUP),
}


def needs_of(command: RemotingCommand, cluster: str) -> list[Need]:
    """Return all that a request needs. NoPermission: its body does not say."""
    special = SPECIAL.get(command.code)
    if special is not None:
        try:
            return list(special(command))
        except BodyError as error:
            raise NoPermission(f"parse authorization context error: {error}") from error
    fields = NEEDS.get(command.code) or UNGUARDED.get(command.code)
    return [] if fields is None else _by_fields(fields, command, cluster)


def _by_fields(fields: Fields, command: RemotingCommand, cluster: str) -> list[Need]:
    if fields.cluster:
        return [Need(Resource("Cluster", cluster), fields.actions)]
    found = []
    for make, names in ((group_resource, fields.groups), (topic_resource, fields.topics)):
        for index, name in enumerate(names):
            text = command.ext.get(name, "")
            is_list = index == 0 and len(names) > 1 and fields.splitter
            for part in text.split(fields.splitter) if is_list else (text,):
                if part:
                    found.append(Need(make(part), fields.actions))
    return found


def _send(topic: str, group: str) -> Callable[[RemotingCommand], Sequence[Need]]:
    def needs(command: RemotingCommand) -> Sequence[Need]:
        name = command.ext.get(topic, "")
        if name.startswith(RETRY_PREFIX):
            return (Need(group_resource(command.ext.get(group) or name), _SUB),)
        return (Need(Resource("Topic", name), _PUB),)

    return needs


def _of_group(*actions: str) -> Callable[[RemotingCommand], Sequence[Need]]:
    """Its group, and its topic unless that is a retry topic."""

    def needs(command: RemotingCommand) -> Sequence[Need]:
        topic = command.ext.get("topic", "")
        group = Need(group_resource(command.ext.get("consumerGroup", "")), actions)
        return (group,) if topic.startswith(RETRY_PREFIX) else (Need(Resource("Topic", topic), actions), group)

    return needs


def _heartbeat(command: RemotingCommand) -> Sequence[Need]:
    found = []
    for consumer in HeartbeatData.decode(command.body).consumer_data_set:
        found.append(Need(group_resource(consumer.group_name), _SUB))
        found += [
            Need(Resource("Topic", subscription.topic), _SUB)
            for subscription in consumer.subscription_data_set
            if not subscription.topic.startswith(RETRY_PREFIX)
        ]
    return found


def _locks(command: RemotingCommand) -> Sequence[Need]:
    body = LockBatchBody.decode(command.body)
    topics = dict.fromkeys(queue.topic for queue in body.mq_set if not queue.topic.startswith(RETRY_PREFIX))
    return [
        Need(group_resource(body.consumer_group), _SUB),
        *(Need(Resource("Topic", topic), _SUB) for topic in topics),
    ]


def _acks(command: RemotingCommand) -> Sequence[Need]:
    named = dict.fromkeys((ack.group, ack.topic) for ack in BatchAckBody.decode(command.body).acks)
    return [
        Need(resource, _SUB) for group, topic in named for resource in (group_resource(group), topic_resource(topic))
    ]


def _made_topics(command: RemotingCommand) -> Sequence[Need]:
    topics = TopicConfigList.decode(command.body).topic_config_list
    return [Need(topic_resource(config.topic), ("Create",)) for config in topics]


def _made_groups(command: RemotingCommand) -> Sequence[Need]:
    if command.code == Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP:
        groups: tuple[SubscriptionGroupConfig, ...] = (SubscriptionGroupConfig.decode(command.body),)
    else:
        groups = SubscriptionGroupList.decode(command.body).group_config_list
    return [Need(group_resource(config.group_name), ("Create", "Update")) for config in groups]


SPECIAL: Final[Mapping[int, Callable[[RemotingCommand], Sequence[Need]]]] = {
    Code.SEND_MESSAGE: _send("topic", "group"),
    Code.SEND_MESSAGE_V2: _send("b", "a"),
    Code.SEND_BATCH_MESSAGE: _send("b", "a"),
    Code.PULL_MESSAGE: _of_group("Sub"),
    Code.QUERY_CONSUMER_OFFSET: _of_group("Sub", "Get"),
    Code.UPDATE_CONSUMER_OFFSET: _of_group("Sub", "Update"),
    Code.HEART_BEAT: _heartbeat,
    Code.LOCK_BATCH_MQ: _locks,
    Code.UNLOCK_BATCH_MQ: _locks,
    # 5.3.3 asks nothing more of a known user for these.
    Code.BATCH_ACK_MESSAGE: _acks,
    Code.UPDATE_AND_CREATE_TOPIC_LIST: _made_topics,
    Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: _made_groups,
    Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: _made_groups,
}
