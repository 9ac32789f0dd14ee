"""When a message moves to the dead-letter topic: after its group's retries are exhausted.

Source: handleRetryAndDLQ of SendMessageProcessor, consumerSendMsgBack of AbstractSendMessageProcessor, apache/rocketmq
broker/.
"""

from mqtrail.wire import VERSION_MAX_RECONSUME_TIMES, RemotingCommand, SubscriptionGroupConfig


def is_exhausted(
    failed_count: int, group: SubscriptionGroupConfig, request: RemotingCommand, asked_max: int | None
) -> bool:
    """Return whether failed_count deliveries, including this one, exceed the retries of the group.

    asked_max: maxReconsumeTimes of the request's header; it replaces the group's limit for clients that may set it.
    """
    if request.version >= VERSION_MAX_RECONSUME_TIMES and asked_max is not None:
        return failed_count > asked_max
    return group.gives_up(failed_count)
