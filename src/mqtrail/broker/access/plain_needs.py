"""What a request of 4.9 needs: PUB or SUB on topics and groups, by code. Groups stand as their %RETRY% topic.

Codes that are not listed need a valid signature alone. ADMIN_CODES need an admin as well.

Source: PlainAccessValidator.parse, Permission, apache/rocketmq acl/ of 4.9.8.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from mqtrail.wire import (
    RETRY_PREFIX,
    BatchAckBody,
    BodyError,
    HeartbeatData,
    RemotingCommand,
    RequestCode,
    SystemError_,
    retry_topic,
)

DENY: Final = 1
PUB: Final = 4
SUB: Final = 8

ADMIN_CODES: Final = frozenset(
    {
        RequestCode.UPDATE_AND_CREATE_TOPIC,
        RequestCode.UPDATE_BROKER_CONFIG,
        RequestCode.DELETE_TOPIC_IN_BROKER,
        RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
        RequestCode.DELETE_SUBSCRIPTIONGROUP,
        # 4.9 lets every account with a valid signature send these; they make accounts, or are 5.x's lists of the above.
        RequestCode.UPDATE_AND_CREATE_ACL_CONFIG,
        RequestCode.DELETE_ACL_CONFIG,
        RequestCode.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG,
        RequestCode.GET_BROKER_CLUSTER_ACL_CONFIG,
        RequestCode.UPDATE_AND_CREATE_TOPIC_LIST,
        RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST,
    }
)


class AclRefusal(SystemError_):
    """An account may not do that. Code 1, as 4.9's request hook answers its exceptions."""

    retryable = False


def needed_permissions(command: RemotingCommand) -> dict[str, int]:
    """Return what a request needs: resource -> bits. Codes that are not listed need a valid signature alone."""
    needs = _NEEDS.get(command.code)
    if needs is None:
        return {}
    found: dict[str, int] = {}
    for resource, bits in needs(command):
        if resource:
            found[resource] = bits
    return found


Need = tuple[str | None, int]


def _group(name: str | None) -> str | None:
    return None if name is None else name if name.startswith(RETRY_PREFIX) else retry_topic(name)


def _send(topic: str, group: str) -> Callable[[RemotingCommand], Sequence[Need]]:
    def needs(command: RemotingCommand) -> Sequence[Need]:
        name = command.ext.get(topic)
        if name is not None and name.startswith(RETRY_PREFIX):
            return ((_group(command.ext.get(group)), SUB),)
        return ((name, PUB),)

    return needs


def _read(*, topic: str = "", group: str = "") -> Callable[[RemotingCommand], Sequence[Need]]:
    def needs(command: RemotingCommand) -> Sequence[Need]:
        return (
            *(((command.ext.get(topic), SUB),) if topic else ()),
            *(((_group(command.ext.get(group)), SUB),) if group else ()),
        )

    return needs


def _heartbeat(command: RemotingCommand) -> Sequence[Need]:
    try:
        data = HeartbeatData.decode(command.body)
    except BodyError as error:
        raise AclRefusal(str(error)) from error
    needs: list[Need] = []
    for consumer in data.consumer_data_set:
        needs.append((_group(consumer.group_name), SUB))
        needs += [(subscription.topic, SUB) for subscription in consumer.subscription_data_set]
    return needs


def _acks(command: RemotingCommand) -> Sequence[Need]:
    try:
        acks = BatchAckBody.decode(command.body).acks
    except BodyError as error:
        raise AclRefusal(str(error)) from error
    return [need for ack in acks for need in ((ack.topic, SUB), (_group(ack.group), SUB))]


_NEEDS: Final[Mapping[int, Callable[[RemotingCommand], Sequence[Need]]]] = {
    RequestCode.SEND_MESSAGE: _send("topic", "group"),
    RequestCode.SEND_MESSAGE_V2: _send("b", "a"),
    RequestCode.CONSUMER_SEND_MSG_BACK: _read(group="group"),
    RequestCode.PULL_MESSAGE: _read(topic="topic", group="consumerGroup"),
    RequestCode.QUERY_MESSAGE: _read(topic="topic"),
    RequestCode.HEART_BEAT: _heartbeat,
    RequestCode.UNREGISTER_CLIENT: _read(group="consumerGroup"),
    RequestCode.GET_CONSUMER_LIST_BY_GROUP: _read(group="consumerGroup"),
    RequestCode.UPDATE_CONSUMER_OFFSET: _read(topic="topic", group="consumerGroup"),
    # 4.9 checks the signature alone of these, so that a batch goes where its message may not; we ask as for their kin.
    RequestCode.SEND_BATCH_MESSAGE: _send("b", "a"),
    RequestCode.LITE_PULL_MESSAGE: _read(topic="topic", group="consumerGroup"),
    RequestCode.POP_MESSAGE: _read(topic="topic", group="consumerGroup"),
    RequestCode.ACK_MESSAGE: _read(topic="topic", group="consumerGroup"),
    RequestCode.BATCH_ACK_MESSAGE: _acks,
    RequestCode.CHANGE_MESSAGE_INVISIBLETIME: _read(topic="topic", group="consumerGroup"),
    RequestCode.PEEK_MESSAGE: _read(topic="topic", group="consumerGroup"),
}
