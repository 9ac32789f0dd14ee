"""Which groups read a topic, from brokers that answer with the topic's own name in place of its live groups."""

from mqtrail.client.admin import Admin
from mqtrail.wire import (
    ConsumerConnections,
    GroupList,
    RemotingCommand,
    RequestCode,
    ResponseCode,
    SubscriptionData,
    SubscriptionGroupConfig,
    SubscriptionGroupTable,
)
from tests.loops import run

from ..fake_cluster import fake_cluster

CONFIGURED = ("orders", "Live", "Elsewhere", "Off", "Stopped")
SUBSCRIPTIONS = {"Live": "orders", "Elsewhere": "payments"}


def answer(groups: tuple[str, ...], command: RemotingCommand) -> RemotingCommand | None:
    """Answer like a broker of 5.3.3 with these groups for the topic."""
    match command.code:
        case RequestCode.QUERY_TOPIC_CONSUME_BY_WHO:
            body = GroupList(groups).encode()
        case RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG:
            body = SubscriptionGroupTable({name: SubscriptionGroupConfig(name) for name in CONFIGURED}).encode()
        case RequestCode.GET_CONSUMER_CONNECTION_LIST:
            topic = SUBSCRIPTIONS.get(command.ext["consumerGroup"])
            if topic is None:
                return RemotingCommand.reply_to(command, ResponseCode.CONSUMER_NOT_ONLINE, "not online")
            body = ConsumerConnections(subscription_table={topic: SubscriptionData(topic, "*")}).encode()
        case _:
            return None
    return RemotingCommand.reply_to(command, 0, body=body)


def groups_of(*groups: str) -> tuple[tuple[str, ...], list[int]]:
    """The groups that our admin finds where the broker names `groups`, and the requests that it made."""

    async def ask() -> tuple[tuple[str, ...], list[int]]:
        async with fake_cluster({"orders": 1}) as cluster, Admin(cluster.namesrv) as admin:
            [broker] = cluster.brokers
            broker.script = lambda command: answer(groups, command)
            [found] = (await admin.groups_of_topic("orders")).values()
            return found.group_list, broker.codes()

    found: tuple[tuple[str, ...], list[int]] = run(ask())
    return found


def test_the_topics_own_name_means_its_live_groups() -> None:
    """Groups with offsets stay, the live ones are found by their connections, and the topic is no group."""
    found, _ = groups_of("orders", "Stopped")
    assert found == ("Live", "Stopped")


def test_others_are_asked_one_question() -> None:
    """A broker that returns only groups gets no other request."""
    assert groups_of("Live", "Stopped") == (("Live", "Stopped"), [RequestCode.QUERY_TOPIC_CONSUME_BY_WHO])
