"""Permissions that requests need: terms for the rows of the permission table.

They apply to users and policies (5.x) and to ACL files (4.9). The table is part of the table of request codes
(`broker.requests`). A row states the permissions for the resources that a request names, and for stored records that it
touches, such as the half message that it ends. Codes without a row are refused, except for Super users and admins
(tests/broker/access/test_matrix.py).

    actions on a resource     5.x: as they are       4.9: Pub is PUB, Sub and Get are SUB, others need admin: true
    several actions           one of them            the weakest of them
    a cluster                 Get or Update          admin: true

Apache's brokers require less in many cases: 5.3.3 a known user, 4.9.8 a valid signature. With aclLikeApache, a row is
not checked in the dialects in `opened`, and `touches` is not checked.

Source: DefaultAuthorizationContextBuilder and the @RocketMQAction of header classes, apache/rocketmq 5.3.3;
PlainAccessValidator.parse, Permission, apache/rocketmq acl/ of 4.9.8.
"""

from collections.abc import Iterable, Iterator
from typing import Final

from mqtrail.wire import (
    HALF_TOPIC,
    RAW_TIMER_DEL_UNIQKEY,
    RETRY_PREFIX,
    SYSTEM_GROUP_PREFIX,
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
    ResumeCheckHalfMessageHeader,
    SendBackHeader,
    SubscriptionGroupConfig,
    SubscriptionGroupList,
    TopicConfigList,
    ViewMessageHeader,
    decode_head,
    find_property,
    parse_offset_msg_id,
    reply_topic,
    sent_properties,
    sent_topic,
    topic_of_marker,
)

from .context import TARGETED_TOPICS, AccessContext, AccessKind, Need, NeedsOf, Permission
from .policies import Resource, topic_resource


def needs_of(command: RemotingCommand, context: AccessContext, kind: AccessKind) -> Iterator[Need]:
    """Yield the permissions of a request: first for the names in it, then for records. NoPermission: no row.

    A record is read only if the caller continues, so that a refused request reads nothing.
    """
    asked = context.permissions.get(command.code)
    if asked is None:
        if context.like_apache:
            return
        raise NoPermission(
            f"found request code {command.code}, which has no row in the permission table: expected a Super user or an "
            "admin account"
        )
    if context.like_apache and kind in asked.opened:
        return
    try:
        yield from asked.needs(command, context)
        if not context.like_apache:
            yield from asked.touches(command, context)
    except (BodyError, HeaderError, IdError, RecordError) as error:
        raise NoPermission(f"parse authorization context error: {error}") from error


# Names in a request.


def nothing(command: RemotingCommand, context: AccessContext) -> Iterable[Need]:
    return ()


def topic(*actions: str, optional: bool = False) -> NeedsOf:
    """Require the topic in a field; an optional field only if present."""

    def needs(command: RemotingCommand, context: AccessContext) -> Iterator[Need]:
        name = command.ext.get("topic", "")
        if name or not optional:
            yield from _of_topic(name, actions, context)

    return needs


def found_in(*actions: str) -> NeedsOf:
    """Require the topic whose messages are read."""
    return lambda command, context: _stored_in(command.ext.get("topic", ""), actions, context)


def group(*actions: str, field: str = "consumerGroup", optional: bool = False) -> NeedsOf:
    """Require the group in a field; an optional field only if present."""

    def needs(command: RemotingCommand, context: AccessContext) -> Iterator[Need]:
        name = command.ext.get(field, "")
        if name or not optional:
            yield from _of_group(name, actions, context)

    return needs


def listed(*actions: str, field: str, separator: str, kind: str) -> NeedsOf:
    """Require each name in a list field."""

    def needs(command: RemotingCommand, context: AccessContext) -> Iterator[Need]:
        for name in filter(None, command.ext.get(field, "").split(separator)):
            yield Need(topic_resource(name) if kind == "Topic" else Resource(kind, name.strip()), actions)

    return needs


def cluster(*actions: str) -> NeedsOf:
    """Require the cluster of this broker."""
    return lambda command, context: (Need(Resource("Cluster", context.cluster), actions),)


def each(*asks: NeedsOf) -> NeedsOf:
    """Require all of them."""
    return lambda command, context: (need for ask in asks for need in ask(command, context))


def _of_group(group: str, actions: tuple[str, ...], context: AccessContext) -> Iterator[Need]:
    """Yield the permissions for a group.

    A group that does not exist yet gets the retry topic of its name: if others pop into that topic, it needs theirs
    too. Offsets of the broker's own groups are the progress of transactions and pops.
    """
    yield Need(Resource("Group", group), actions)
    if group.startswith(SYSTEM_GROUP_PREFIX) and "Get" not in actions and not context.like_apache:
        yield Need(Resource("Cluster", context.cluster), ("Update",))
    yield from _popped(context.popped_as(group), actions)


def _popped(owners: Iterable[tuple[str, str]], actions: tuple[str, ...]) -> Iterator[Need]:
    for group, topic in owners:
        yield Need(Resource("Group", group), actions)
        yield Need(topic_resource(topic), actions)


def _of_topic(topic: str, actions: tuple[str, ...], context: AccessContext) -> Iterator[Need]:
    """Yield the permissions for a topic; for a retry topic those for its group, or for the groups that pop into it and
    their topics."""
    if topic.startswith(RETRY_PREFIX) and (owners := context.popped_as(topic[len(RETRY_PREFIX) :])):
        yield from _popped(owners, actions)
    else:
        yield Need(topic_resource(topic), actions)


def _stored_in(topic: str, actions: tuple[str, ...], context: AccessContext) -> Iterator[Need]:
    """Yield the permissions to read the messages of a topic. Those that wait in a system topic are of any topic: a
    grant for all topics but one must not show them."""
    yield from _of_topic(topic, actions, context)
    if topic in TARGETED_TOPICS and not context.like_apache:
        yield Need(Resource("Cluster", context.cluster), ("Get",))


def _consumed(topic: str, group: str, actions: tuple[str, ...], context: AccessContext) -> Iterator[Need]:
    """Yield the permissions of a group to consume a topic or one of its retry topics; other retry topics need their
    group.

    %RETRY%group_topic and %RETRY%group+topic contain retries of messages that the group popped from a topic. The first
    is the retry topic of a group named group_topic, if that group exists. Without it, two groups with such names may
    share the topic: then each needs the permissions of both.
    """
    yield from _of_group(group, actions, context)
    if not topic.startswith(RETRY_PREFIX):
        yield from _stored_in(topic, actions, context)
        return
    owner = topic[len(RETRY_PREFIX) :]
    if owner == group or context.like_apache:
        return
    if owner.startswith((f"{group}+", f"{group}_")) and not context.has_group(owner):
        yield Need(topic_resource(owner[len(group) + 1 :]), actions)
        yield from _popped(context.popped_as(owner), actions)
        return
    yield from _of_group(owner, actions, context)


def consumes(*actions: str) -> NeedsOf:
    """Require the topic and the consumer group in fields."""
    return lambda command, context: _consumed(
        command.ext.get("topic", ""), command.ext.get("consumerGroup", ""), actions, context
    )


def pops(command: RemotingCommand, context: AccessContext) -> Iterator[Need]:
    """A pop also reads %RETRY%group_topic, which may be the retry topic of a group with that name."""
    topic, group = command.ext.get("topic", ""), command.ext.get("consumerGroup", "")
    yield from _consumed(topic, group, ("Sub",), context)
    if context.has_group(f"{group}_{topic}") and not context.like_apache:
        yield Need(Resource("Group", f"{group}_{topic}"), ("Sub",))
    yield from _popped(context.popped_as(f"{group}_{topic}"), ("Sub",))


def sends(command: RemotingCommand, context: AccessContext) -> Iterator[Need]:
    """Sends need Pub on the topic; to a retry topic Sub on its group, whatever group the request names."""
    topic = sent_topic(command.ext)
    if topic.startswith(RETRY_PREFIX):
        yield from _of_topic(topic, ("Sub",), context)
    elif topic in context.own_topics and not context.like_apache:
        yield Need(Resource("Cluster", context.cluster), ("Update",))
    else:
        yield Need(Resource("Topic", topic), ("Pub",))


def replies(command: RemotingCommand, context: AccessContext) -> Iterator[Need]:
    """A reply is pushed to the client that it names, whatever topic it names: it also needs Pub on the reply topic."""
    yield from sends(command, context)
    yield Need(Resource("Topic", reply_topic(context.cluster)), ("Pub",))


def transaction(command: RemotingCommand, context: AccessContext) -> Iterator[Need]:
    """The topic in a field. The answer to a check (39) names the half topic."""
    name = command.ext.get("topic", "")
    if name and name != HALF_TOPIC:
        yield Need(topic_resource(name), ("Pub",))


def heartbeat(command: RemotingCommand, context: AccessContext) -> Iterator[Need]:
    """Consumers need Sub; producers need nothing here, since checks of half messages verify permissions."""
    for consumer in HeartbeatData.decode(command.body).consumer_data_set:
        yield from _of_group(consumer.group_name, ("Sub",), context)
        for subscription in consumer.subscription_data_set:
            yield from _consumed(subscription.topic, consumer.group_name, ("Sub",), context)


def locks(command: RemotingCommand, context: AccessContext) -> Iterator[Need]:
    body = LockBatchBody.decode(command.body)
    yield from _of_group(body.consumer_group, ("Sub",), context)
    for topic in dict.fromkeys(queue.topic for queue in body.mq_set):
        yield from _consumed(topic, body.consumer_group, ("Sub",), context)


def assignment(command: RemotingCommand, context: AccessContext) -> Iterator[Need]:
    body = QueryAssignmentBody.decode(command.body)
    return _consumed(body.topic, body.consumer_group, ("Sub",), context)


def acks(command: RemotingCommand, context: AccessContext) -> Iterator[Need]:
    acks = BatchAckBody.decode(command.body or b"{}").acks
    for group, topic in dict.fromkeys((ack.group, topic_of_marker(ack.marker, ack.topic, ack.group)) for ack in acks):
        yield from _consumed(topic, group, ("Sub",), context)


def made_topics(command: RemotingCommand, context: AccessContext) -> Iterator[Need]:
    for config in TopicConfigList.decode(command.body).topic_config_list:
        yield Need(topic_resource(config.topic), ("Create",))


def made_group(command: RemotingCommand, context: AccessContext) -> Iterator[Need]:
    name = SubscriptionGroupConfig.decode_request(command.body).group_name
    yield from _of_group(name, ("Create", "Update"), context)


def made_groups(command: RemotingCommand, context: AccessContext) -> Iterator[Need]:
    for config in SubscriptionGroupList.decode(command.body).group_config_list:
        yield from _of_group(config.group_name, ("Create", "Update"), context)


# Records that a request touches.


def recalled(command: RemotingCommand, context: AccessContext) -> Iterator[Need]:
    """A message that recalls another one needs Pub on the topic in TIMER_DEL_UNIQKEY (topic+id)."""
    key = find_property(sent_properties(command.ext).encode("utf-8", "replace"), RAW_TIMER_DEL_UNIQKEY)
    if key is not None:
        yield Need(topic_resource(key.decode("utf-8", "replace").partition("+")[0]), ("Pub",))


def viewed(command: RemotingCommand, context: AccessContext) -> Iterator[Need]:
    record = context.record_topics(ViewMessageHeader.from_ext(command.ext).offset)
    if record is not None:
        for topic in dict.fromkeys((record.topic, record.target_topic)):
            yield from _of_topic(topic, ("Get",), context)


def sent_back(command: RemotingCommand, context: AccessContext) -> Iterator[Need]:
    header = SendBackHeader.from_ext(command.ext)
    record = context.record_topics(header.offset)
    if record is not None:
        for topic in dict.fromkeys((record.topic, record.target_topic)):
            yield from _consumed(topic, header.group, ("Sub",), context)


def consumed_directly(command: RemotingCommand, context: AccessContext) -> Iterator[Need]:
    """The stored message of the id; without an id the record in the body."""
    header = ConsumeMessageDirectlyHeader.from_ext(command.ext)
    if not header.msg_id:
        yield from _consumed(decode_head(command.body).topic, header.consumer_group, ("Sub",), context)
        return
    record = context.record_topics(parse_offset_msg_id(header.msg_id)[1])
    if record is not None:
        for topic in dict.fromkeys((record.topic, record.target_topic)):
            yield from _consumed(topic, header.consumer_group, ("Sub",), context)


def ended(command: RemotingCommand, context: AccessContext) -> Iterator[Need]:
    """The end of a half message needs Pub on its target topic."""
    record = context.record_topics(EndTransactionHeader.from_ext(command.ext).commit_log_offset)
    if record is not None:
        yield Need(topic_resource(record.target_topic), ("Pub",))


def resumed(command: RemotingCommand, context: AccessContext) -> Iterator[Need]:
    record = context.record_topics(
        parse_offset_msg_id(ResumeCheckHalfMessageHeader.from_ext(command.ext).msg_id or "")[1]
    )
    if record is not None:
        for topic in dict.fromkeys((record.target_topic, record.real_topic or record.target_topic)):
            yield Need(topic_resource(topic), ("Update",))


USERS, FILES = frozenset({AccessKind.USERS}), frozenset({AccessKind.FILES})
BOTH, NEVER = USERS | FILES, frozenset[AccessKind]()


def permission(needs: NeedsOf, touches: NeedsOf = nothing, opened: frozenset[AccessKind] = FILES) -> Permission:
    """Return the needs of a code. 5.3.3 has rules for most codes, 4.9.8 has not."""
    return Permission(needs, touches, opened)


KNOWN_USER: Final = permission(nothing)
READ_CLUSTER: Final = permission(cluster("Get"))
READ_CLUSTER_5: Final = permission(cluster("Get"), opened=BOTH)
CHANGE_CLUSTER_5: Final = permission(cluster("Update"), opened=BOTH)
READ_ACCOUNTS: Final = permission(cluster("Get"), opened=NEVER)
CHANGE_ACCOUNTS: Final = permission(cluster("Update"), opened=NEVER)
QUEUE: Final = permission(topic("Sub", "Get"))
POPPED: Final = permission(consumes("Sub"))
SEND: Final = permission(sends, recalled, NEVER)
READ_TOPIC: Final = permission(topic("Get"))
READ_GROUP: Final = permission(group("Get"))
READ_TOPIC_AND_GROUP: Final = permission(each(topic("Get"), group("Get", field="group")))
CHANGE_TOPIC_AND_GROUP: Final = permission(each(topic("Update"), group("Update", field="group")))
