"""Our admin on Apache's servers: each query and change that a name server and a master of that version support."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest
from interop.apache import ApacheCluster
from tests.loops import run

from mqtrail.client import (
    ConsumeFromWhere,
    Consumer,
    ConsumerConfig,
    Delivery,
    Message,
    Producer,
    ProducerConfig,
    SyncAdmin,
    SyncConsumer,
    SyncProducer,
    TrackStatus,
)
from mqtrail.wire import (
    MessageQueue,
    RequestCodeNotSupported,
    SubscriptionGroupConfig,
    TopicConfig,
    dlq_topic,
    retry_topic,
)

pytestmark = [pytest.mark.interop, pytest.mark.timeout(240)]

QUICK = ConsumerConfig(consume_from=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET, rebalance_ms=500, offset_persist_ms=200)
PATIENT = ProducerConfig(send_timeout_ms=10_000)
_AUTH = "org.apache.rocketmq.auth"
ACCESS = {
    "authenticationMetadataProvider": f"{_AUTH}.authentication.provider.LocalAuthenticationMetadataProvider",
    "authorizationMetadataProvider": f"{_AUTH}.authorization.provider.LocalAuthorizationMetadataProvider",
}


@pytest.fixture(scope="module", params=["5.3.3", "4.9.7"])
def apache(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApacheCluster]:
    """A cluster with a topic `orders` of two queues, six messages in it, and a group that read them."""
    with ExitStack() as stack:
        folder = tmp_path_factory.mktemp(f"apache-{request.param}")
        cluster = stack.enter_context(ApacheCluster(request.param, folder, properties=ACCESS))
        namesrv = cluster.namesrv_address
        with SyncAdmin(namesrv) as admin:
            assert admin.create_topic(TopicConfig("orders", 2, 2)).complete
            until(lambda: "orders" in admin.topics())
        with SyncProducer("PG", namesrv, config=PATIENT) as producer:
            for number in range(6):
                producer.send(Message("orders", b"%d" % number, keys=f"k{number}", tags="A"))
        with SyncConsumer("CG", namesrv, {"orders": "*"}, config=QUICK) as consumer:
            for _ in range(6):
                delivery = consumer.receive(120_000)
                assert delivery is not None
                delivery.ack()
        yield cluster


@pytest.fixture
def admin(apache: ApacheCluster) -> Iterator[SyncAdmin]:
    """An admin of the cluster."""
    with SyncAdmin(apache.namesrv_address) as one:
        yield one


def until(condition: Callable[[], object]) -> None:
    """Wait for a condition."""
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)


def test_topics(apache: ApacheCluster, admin: SyncAdmin) -> None:
    """Topics are created, changed, ordered and deleted; several at once only on 5.x."""
    assert admin.create_topic(TopicConfig("life", 1, 1)).complete
    until(lambda: "life" in admin.topics_of_cluster("DefaultCluster"))
    many = admin.create_topics([TopicConfig("one", 1, 1), TopicConfig("two", 1, 1)])
    if apache.version == "4.9.7":
        assert isinstance(many.failures["broker-a"], RequestCodeNotSupported)
    else:
        assert many.complete
    assert admin.clusters_of("life") == ["DefaultCluster"]
    assert {"DefaultCluster", "broker-a"} <= set(admin.system_topics())
    assert "TBW102" in admin.system_topics("broker-a")
    assert admin.set_topic_perm("life", 4).found["broker-a"].perm == 4
    assert admin.set_order_config("life", "broker-a:1").complete
    assert admin.order_config("life") == "broker-a:1"
    assert admin.delete_order_config("life").complete
    assert admin.order_config("life") is None
    stats = admin.topic_stats("orders").found["broker-a"]
    assert sum(reach.max_offset for reach in stats.offset_table.values()) >= 6
    assert admin.clean_unused_topics().complete
    assert admin.delete_topic("life").complete
    until(lambda: "life" not in admin.topics())


def test_groups_and_members(apache: ApacheCluster, admin: SyncAdmin) -> None:
    """Groups are created, changed, queried while their members run, and deleted."""
    assert admin.create_group(SubscriptionGroupConfig("young", retry_max_times=3)).complete
    config = admin.group_config("young").found["broker-a"]
    assert config is not None
    assert config.retry_max_times == 3

    async def live() -> None:
        async with Consumer("Members", apache.namesrv_address, {"orders": "A"}, config=QUICK) as consumer:
            seen = []

            async def handle(delivery: Delivery) -> None:
                seen.append(delivery)

            running = asyncio.create_task(consumer.run(handle))
            async with asyncio.timeout(120):
                while len(seen) < 6:
                    await asyncio.sleep(0.05)
            await asyncio.to_thread(look, consumer.client_id)
            await consumer.close()
            await running

    def look(client_id: str) -> None:
        (member,) = admin.members("Members").found["broker-a"]
        assert (member.client_id, member.error) == (client_id, None)
        assert member.running is not None
        assert {one.topic for one in member.running.subscription_set} >= {"orders"}
        assert admin.subscription("Members", "orders").found["broker-a"].group == "Members"
        groups = admin.groups_of_topic("orders").found["broker-a"].group_list
        assert set(groups) == {"CG", "Members"}  # 5.3.3 itself names the topic in place of live groups
        assert admin.consume_time_spans("Members", "orders").complete
        status = admin.consumer_status("Members", "orders").found["broker-a"]
        assert client_id in status.consumer_table
        message = admin.message_at_offset(admin.queues("orders")[0], 0)
        done = admin.consume_directly(message, "Members")
        assert done.found[client_id].consume_result == "CR_SUCCESS"
        until(
            lambda: (
                {track.group: track.status for track in admin.message_tracks(message)}["Members"]
                is TrackStatus.CONSUMED
            )
        )

    run(live())
    stats = admin.consume_stats("CG", "orders").found["broker-a"]
    assert len(stats.offset_table) == 2
    assert "CG" in admin.broker_consume_stats(admin.masters()["broker-a"]).consume_stats
    if apache.version != "4.9.7":
        assert admin.set_consume_mode("young", "orders", "POP").complete
        assert admin.set_consume_mode("young", "orders", "PULL").complete
    assert admin.delete_group("young", clean_offsets=True).complete
    assert admin.group_config("young").found["broker-a"] is None


def test_offsets(apache: ApacheCluster, admin: SyncAdmin) -> None:
    """Offsets are reset to a time and to the end, written and cloned, also those of an offline group."""
    queues = admin.queues("orders")
    admin.create_group(SubscriptionGroupConfig("walker"))
    written, failed = admin.set_offsets("walker", dict.fromkeys(queues, 1))
    assert (written, failed) == (dict.fromkeys(queues, 1), {})
    admin.create_group(SubscriptionGroupConfig("runner"))
    written, failed = admin.clone_offsets("walker", "runner", "orders")
    assert (written, failed) == (dict.fromkeys(queues, 1), {})
    assert admin.consumer_offset("runner", queues[0]) == 1
    reset = admin.reset_offset("runner", "orders", 0)
    assert reset.complete
    assert set(reset.found["broker-a"].offset_table.values()) == {0}
    skipped = admin.skip_backlog("runner", "orders")
    assert skipped.found["broker-a"].offset_table == {queue: admin.max_offset(queue) for queue in queues}
    written, failed = admin.set_offsets("runner", dict.fromkeys(queues, 1))  # brokers 5.x ignore commits after a reset
    assert (written, failed) == (dict.fromkeys(queues, 1), {})
    assert [admin.consumer_offset("runner", queue) for queue in queues] == [1, 1]
    assert admin.resets_offsets(admin.masters()["broker-a"]) is (apache.version == "5.3.3")
    assert admin.earliest_store_ms(queues[0]) is not None


def test_messages(admin: SyncAdmin) -> None:
    """Messages are found by key, id, position and time."""
    until(lambda: admin.query("orders", "k3").messages)
    (found,) = admin.query("orders", "k3").messages
    assert admin.message_at(found.offset_msg_id).msg_id == found.msg_id
    assert [one.offset_msg_id for one in admin.message_by_id("orders", found.msg_id).messages] == [found.offset_msg_id]
    assert admin.message_at_offset(found.queue, found.queue_offset).msg_id == found.msg_id
    assert {message.body for message in admin.messages("orders")} >= {b"%d" % number for number in range(6)}
    later = list(admin.messages("orders", found.store_timestamp_ms))
    assert all(message.store_timestamp_ms >= found.store_timestamp_ms for message in later)
    assert admin.consume_queue(found.queue, 0).queue_data


def test_dead_letters_go_back(apache: ApacheCluster, admin: SyncAdmin) -> None:
    """A dead letter is delivered to its group again, under its id."""
    namesrv = apache.namesrv_address
    admin.create_topic(TopicConfig("letters", 1, 1))
    until(lambda: "letters" in admin.topics())
    with (
        SyncProducer("PG", namesrv, config=PATIENT) as producer,
        SyncConsumer("Dead", namesrv, {"letters": "*"}, config=QUICK) as consumer,
    ):
        sent = producer.send(Message("letters", b"letter"))
        delivery = consumer.receive(120_000)
        assert delivery is not None
        delivery.retry(-1)
        until(lambda: dlq_topic("Dead") in admin.topics())
        until(lambda: list(admin.messages(dlq_topic("Dead"))))
        (resent,) = admin.resend_dead_letters("Dead")
        assert resent.error is None
        delivery = consumer.receive(120_000)
        assert delivery is not None
        assert (delivery.topic, delivery.msg_id) == ("letters", sent.msg_id)
        delivery.ack()


def test_brokers_and_name_servers(apache: ApacheCluster, admin: SyncAdmin) -> None:
    """Counters, settings changed at run time, permissions, values, upkeep."""
    until(lambda: [broker.error for broker in admin.brokers()] == [None])
    (broker,) = admin.brokers()
    assert broker.version == f"V{apache.version.replace('.', '_')}"
    address = admin.masters()["broker-a"]
    assert admin.set_broker_config({"fileReservedTime": "71"}).complete
    assert admin.broker_config(address)["fileReservedTime"] == "71"
    until(lambda: admin.broker_stats(address, "TOPIC_PUT_NUMS", "orders") is not None)
    assert admin.clean_expired_queues().complete
    assert admin.delete_expired_logs().complete
    assert all(admin.wipe_write_perm("broker-a").values())
    assert all(admin.add_write_perm("broker-a").values())
    assert admin.kv_put("N", "k", "v").complete
    assert (admin.kv_get("N", "k"), admin.kv_list("N")) == ("v", {"k": "v"})
    assert admin.kv_delete("N", "k").complete
    assert admin.kv_get("N", "k") is None
    assert admin.set_namesrv_config({"orderMessageEnable": "true"}).complete
    (settings,) = admin.namesrv_config().values()
    assert settings["orderMessageEnable"] == "true"
    if apache.version != "4.9.7":
        assert "master" in admin.ha_status(address).lower()


def test_users_and_policies(apache: ApacheCluster, admin: SyncAdmin) -> None:
    """5.x has users and policies; a broker of 4.9 does not know them."""
    if apache.version == "4.9.7":
        assert isinstance(admin.users().failures["broker-a"], RequestCodeNotSupported)
        return
    assert admin.create_user("ann", "secret-1").complete
    assert admin.update_user("ann", user_status="disable").complete
    user = admin.user("ann").found["broker-a"]
    assert user is not None
    assert user.user_status == "disable"
    assert admin.user("bob").found["broker-a"] is None
    assert [one.username for one in admin.users().found["broker-a"]] == ["ann"]
    assert admin.create_acl("User:ann", ["Topic:orders", "Group:CG"], ["Pub", "Sub"], source_ips=["10.0.0.1"]).complete
    assert admin.update_acl("User:ann", ["Topic:orders"], ["Pub"], decision="Deny").complete
    acl = admin.acl("User:ann").found["broker-a"]
    assert acl is not None
    entries = {entry.resource: entry for policy in acl.policies for entry in policy.entries}
    assert entries["Topic:orders"].decision == "Deny"
    assert [one.subject for one in admin.acls("ann").found["broker-a"]] == ["User:ann"]
    assert admin.delete_acl("User:ann").complete
    assert admin.delete_user("ann").complete
    assert admin.users().found["broker-a"] == []


async def test_who_sends(apache: ApacheCluster, admin: SyncAdmin) -> None:
    """Online producers by group."""
    async with Producer("Senders", apache.namesrv_address, config=PATIENT) as producer:
        await producer.send(Message("orders", b"x"))
        async with asyncio.timeout(120):
            while "Senders" not in (await asyncio.to_thread(admin.producers)).found["broker-a"].data:
                await asyncio.sleep(0.05)


def test_lag(apache: ApacheCluster, admin: SyncAdmin) -> None:
    """Ages by the broker's clock, an offset past the end, one never committed, retry topics and delayed copies."""
    for topic in ("late", retry_topic("Late")):
        assert admin.create_topic(TopicConfig(topic, 2, 2)).complete
    until(lambda: {"late", retry_topic("Late")} <= set(admin.topics()))
    queues = [MessageQueue("late", "broker-a", number) for number in range(2)]
    with SyncProducer("PG", apache.namesrv_address, config=PATIENT) as producer:
        for queue in queues * 3:
            producer.send(Message("late", b"1", keys="k"), queue=queue)
        producer.send(Message(retry_topic("Late"), b"again"), queue=MessageQueue(retry_topic("Late"), "broker-a", 0))
        producer.send(Message(retry_topic("Late"), b"later", delay_level=18))
    for group, offsets in {"Late": (1, 3), "Ahead": (9, 3), "Half": (0, None), "Done": (3, 3)}.items():
        assert admin.create_group(SubscriptionGroupConfig(group)).complete
        for queue, offset in zip(queues, offsets, strict=True):
            if offset is not None:
                admin.set_offset(group, queue, offset)
    until(lambda: {one.group_name for one in admin.lag().groups} >= {"Late", "Ahead", "Half", "Done"})
    found = admin.lag("Late", over_ms=50, oldest_count=5)
    assert found.problems == ()
    [late] = found.groups
    assert (late.topics.lag_count, late.topics.unknown_count, late.retry.lag_count) == (2, 0, 1)
    assert (late.delayed_count, late.trend.state) == (1, "STEADY")
    assert all(0 <= (lag.lag_ms or 0) < 600_000 for lag in late.queues)
    assert late.lag_ms
    # Ages of different queues are of different requests: these messages are only ms apart.
    assert {(one.topic, one.queue_offset, one.keys) for one in found.oldest} == {
        ("late", 1, "k"),
        ("late", 2, "k"),
        (retry_topic("Late"), 0, ""),
    }
    groups = {one.group_name: one for one in admin.lag().groups}
    assert [lag.lag_count for lag in groups["Ahead"].queues] == [None, 0]
    assert [lag.lag_count for lag in groups["Half"].queues] == [3, None]
    assert groups["Half"].lag_ms
    read = groups["Done"]
    assert (read.topics.lag_count, read.topics.lag_ms, read.topics.unknown_count) == (0, 0, 0)
