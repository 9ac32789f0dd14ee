"""Admin on our own brokers: each query and each change, and the report of failing brokers."""

import threading
from collections.abc import Generator, Iterator

import pytest

from mqtrail.client import (
    SERVER_SIDE_RESET,
    ClientError,
    ConsumeFromWhere,
    ConsumerConfig,
    SyncAdmin,
    SyncConsumer,
    SyncProducer,
    TrackStatus,
)
from mqtrail.testing import Embedded, embedded
from mqtrail.wire import (
    ConsumerNotOnline,
    Message,
    NoMessage,
    SubscriptionGroupConfig,
    TopicConfig,
    dlq_topic,
)
from tests.waiting import wait_until

QUICK = ConsumerConfig(
    consume_from=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET, rebalance_ms=50, offset_persist_ms=20, close_wait_ms=200
)
BROKERS = {"broker-a", "broker-b"}


@pytest.fixture(scope="module")
def cluster() -> Iterator[Embedded]:
    """Two brokers, a topic `orders` of two queues each with ten messages, and a group that read them."""
    with embedded(brokers=2) as running:
        with SyncAdmin(running.namesrv_address) as admin:
            assert admin.create_topic(TopicConfig("orders", 2, 2)).complete
        with SyncProducer("PG", running.namesrv_address) as producer:
            for number in range(10):
                producer.send(Message("orders", b"%d" % number, keys=f"k{number}", tags="A"))
        with SyncConsumer("CG", running.namesrv_address, {"orders": "*"}, config=QUICK) as consumer:
            for _ in range(10):
                delivery = consumer.receive(20_000)
                assert delivery is not None
                delivery.ack()
        yield running


@pytest.fixture
def admin(cluster: Embedded) -> Iterator[SyncAdmin]:
    """An admin of the cluster."""
    with SyncAdmin(cluster.namesrv_address) as one:
        yield one


def test_topics(admin: SyncAdmin) -> None:
    """Topics are created, listed by cluster, changed, ordered and deleted, with a result per broker and name server."""
    made = admin.create_topics(
        [TopicConfig("one", 1, 1), TopicConfig("two", 1, 1, attributes={"message.type": "FIFO"})]
    )
    assert set(made.found) == BROKERS
    wait_until(lambda: {"one", "two"} <= set(admin.topics_of_cluster("DefaultCluster")))
    assert admin.clusters_of("orders") == ["DefaultCluster"]
    assert set(admin.system_topics()) >= BROKERS
    assert "TBW102" in admin.system_topics("broker-a")
    wait_until(lambda: set(admin.topic_config("two").found) == BROKERS)
    assert admin.topic_config("two").found["broker-a"].attributes == {"message.type": "FIFO"}
    changed = admin.set_topic_perm("two", 4, broker="broker-a")
    assert {name: config.perm for name, config in changed.found.items()} == {"broker-a": 4}
    assert {name: config.perm for name, config in admin.topic_config("two").found.items()} == {
        "broker-a": 4,
        "broker-b": 6,
    }
    assert admin.topic_config("two").found["broker-a"].attributes == {"message.type": "FIFO"}
    with pytest.raises(ClientError, match="broker-a, broker-b"):
        admin.set_topic_perm("two", 4, broker="nowhere")
    assert admin.order_config("two") is None
    assert admin.set_order_config("two", "broker-a:1").complete
    assert admin.order_config("two") == "broker-a:1"
    assert admin.delete_order_config("two").complete
    deleted = admin.delete_topic("two")
    assert deleted.complete
    assert set(deleted.brokers.found) == BROKERS
    assert len(deleted.name_servers.found) == 1
    wait_until(lambda: "two" not in admin.topics())


def test_changes_of_one_broker(admin: SyncAdmin) -> None:
    """A broker is chosen by name or address; the error for an unknown one lists the known ones."""
    address = admin.masters()["broker-b"]
    assert list(admin.create_topic(TopicConfig("three", 1, 1), broker="broker-b").found) == ["broker-b"]
    assert list(admin.create_topic(TopicConfig("three", 1, 1), broker=address).found) == [address]
    wait_until(lambda: "three" in admin.topics())
    assert set(admin.topic_config("three").found) == {"broker-b"}
    with pytest.raises(ClientError, match="broker-a, broker-b"):
        admin.create_topic(TopicConfig("three"), broker="broker-c")
    with pytest.raises(ClientError, match="nowhere"):
        admin.create_topic(TopicConfig("three"), cluster="nowhere")
    half = admin.targets()
    assert set(half) == BROKERS


def test_a_broker_that_is_down_is_a_failure_by_name() -> None:
    """The failure is returned with the results of the other brokers."""
    with embedded(brokers=2) as running, SyncAdmin(running.namesrv_address) as admin:
        known = admin.masters()
        running.stop_broker("broker-b")
        # The name server may not have noticed yet: ask by what was known.
        assert admin.create_topic(TopicConfig("t", 1, 1), broker=known["broker-a"]).complete
        gone = admin.create_topic(TopicConfig("t", 1, 1), broker=known["broker-b"])
        assert (list(gone.failures), gone.complete) == ([known["broker-b"]], False)


def test_groups(admin: SyncAdmin) -> None:
    """Groups are created, found, and deleted with their topics."""
    assert admin.create_groups(
        [SubscriptionGroupConfig("G1", retry_max_times=3), SubscriptionGroupConfig("G2")]
    ).complete
    found = admin.group_config("G1").found
    assert {name: config.retry_max_times for name, config in found.items() if config} == dict.fromkeys(BROKERS, 3)
    assert admin.group_config("nobody").found == dict.fromkeys(BROKERS)
    assert admin.delete_group("G1", clean_offsets=True).complete
    assert admin.group_config("G1").found == dict.fromkeys(BROKERS)
    assert set(admin.delete_group_topics("G1")) == {"%RETRY%G1", "%DLQ%G1"}
    assert admin.set_consume_mode("G2", "orders", "POP").complete
    assert admin.set_consume_mode("G2", "orders", "PULL").complete


def test_who_is_there(cluster: Embedded, admin: SyncAdmin) -> None:
    """Members report about themselves; if there are none, every master says so, which is not a failure."""
    assert all(not one.connection_set for one in admin.group_connections("nobody").values())
    assert all(members == [] for members in admin.members("nobody").values())
    with (
        SyncProducer("PG2", cluster.namesrv_address) as producer,
        SyncConsumer("CG2", cluster.namesrv_address, {"orders": "A"}, config=QUICK) as consumer,
    ):
        producer.send(Message("orders", b"x", tags="B"))
        assert consumer.receive(20_000) is not None
        for members in admin.members("CG2").values():
            (member,) = members
            assert member.error is None
            assert member.running is not None
            assert {one.topic for one in member.running.subscription_set} == {"orders", "%RETRY%CG2"}
        assert "PG2" in set().union(*(table.data for table in admin.producers().values()))
        assert {one.group for one in admin.subscription("CG2", "orders").values()} == {"CG2"}


def test_offsets(admin: SyncAdmin) -> None:
    """Offsets are reset by time, skipped, written and cloned, queue by queue."""
    queues = admin.queues("orders")
    ends = {queue: admin.max_offset(queue) for queue in queues}
    moved = admin.reset_offset("CG", "orders", 0)
    assert moved.complete
    assert {queue: offset for one in moved.values() for queue, offset in one.offset_table.items()} == dict.fromkeys(
        queues, 0
    )
    admin.create_group(SubscriptionGroupConfig("CLONE"))
    written, failed = admin.set_offsets("CLONE", dict.fromkeys(queues, 1))
    assert (written, failed) == (dict.fromkeys(queues, 1), {})
    assert admin.consumer_offset("CLONE", queues[0]) == 1
    admin.create_group(SubscriptionGroupConfig("BACK"))
    positions = {queue: (0 if number == 0 else ends[queue]) for number, queue in enumerate(queues)}
    admin.set_offsets("BACK", positions)
    middle = next(m for m in admin.messages("orders", queue=queues[1]) if m.queue_offset == 1).store_timestamp_ms
    planned = admin.plan_reset("BACK", "orders", middle, force=False)
    assert planned.complete
    back = admin.reset_offset("BACK", "orders", middle, force=False)
    assert back.complete
    assert {move.queue: move.new_offset for move in planned.values()} == {
        queue: admin.consumer_offset("BACK", queue) for queue in queues
    }
    assert admin.consumer_offset("BACK", queues[0]) == 0
    assert (admin.consumer_offset("BACK", queues[1]) or 0) < ends[queues[1]]
    admin.create_group(SubscriptionGroupConfig("CLONE2"))
    written, failed = admin.clone_offsets("CLONE", "CLONE2", "orders")
    assert (written, failed) == (dict.fromkeys(queues, 1), {})
    skipped = admin.skip_backlog("CLONE", "orders")
    assert {queue: offset for one in skipped.values() for queue, offset in one.offset_table.items()} == ends
    assert admin.earliest_store_ms(queues[0]) is not None
    admin.create_topic(TopicConfig("empty", 1, 1))
    wait_until(lambda: "empty" in admin.topics())
    assert admin.earliest_store_ms(admin.queues("empty")[0]) is None


def test_an_offset_is_set_where_commits_are_ignored(admin: SyncAdmin) -> None:
    """After a reset the broker acknowledges commits and ignores them: the offset is reset, or an error says so."""
    queue = admin.queues("orders")[0]
    end, address = admin.max_offset(queue), admin.masters()[queue.broker_name]
    admin.create_group(SubscriptionGroupConfig("RESET"))
    admin.set_offset("RESET", queue, end + 9)  # a commit: a reset takes no offset past the end
    assert admin.consumer_offset("RESET", queue) == end + 9
    admin.reset_offset("RESET", "orders", 0)
    admin.create_group(SubscriptionGroupConfig("FROM"))
    admin.set_offset("FROM", queue, 1)
    assert admin.resets_offsets(address)
    admin.set_offset("RESET", queue, end)
    assert admin.consumer_offset("RESET", queue) == end
    assert admin.set_offsets("RESET", {queue: 0}) == ({queue: 0}, {})
    assert admin.clone_offsets("FROM", "RESET", "orders") == ({queue: 1}, {})
    assert admin.consumer_offset("RESET", queue) == 1
    admin.set_broker_config({SERVER_SIDE_RESET: "false"})
    try:
        assert not admin.resets_offsets(address)
        with pytest.raises(ClientError, match=r"found offset 1 of .* after the commit, expected 0"):
            admin.set_offset("RESET", queue, 0)
    finally:
        admin.set_broker_config({SERVER_SIDE_RESET: "true"})


def test_live_members_move_to_an_offset_that_is_set(cluster: Embedded, admin: SyncAdmin) -> None:
    """Without the reset, a member would commit its own offset again."""
    queue = admin.queues("orders")[0]
    with SyncConsumer("LIVE", cluster.namesrv_address, {"orders": "*"}, config=QUICK) as consumer:

        def has_read_all() -> bool:
            while (delivery := consumer.receive(10)) is not None:
                delivery.ack()
            return all(admin.consumer_offset("LIVE", one) == admin.max_offset(one) for one in admin.queues("orders"))

        wait_until(has_read_all)
        admin.set_offset("LIVE", queue, 1)
        again = consumer.receive(20_000)
        assert again is not None
        assert (again.message.queue_id, again.message.queue_offset) == (queue.queue_id, 1)


def test_messages(admin: SyncAdmin) -> None:
    """Messages are found by position, time and queue; the error for an unknown queue lists the known ones."""
    queue = admin.queues("orders")[0]
    found = admin.message_at_offset(queue, 1)
    assert (found.queue_offset, found.queue) == (1, queue)
    with pytest.raises(NoMessage, match="expected one of"):
        admin.message_at_offset(queue, 99)
    everything = list(admin.messages("orders"))
    assert {message.body for message in everything} >= {b"%d" % number for number in range(10)}
    of_one = [message for message in everything if message.queue == queue]
    assert list(admin.messages("orders", queue=queue)) == of_one
    middle = of_one[1].store_timestamp_ms
    assert list(admin.messages("orders", middle, queue=queue)) == [
        message for message in of_one if message.store_timestamp_ms >= middle
    ]
    assert list(admin.messages("orders", 0, middle, queue=queue)) == [
        message for message in of_one if message.store_timestamp_ms < middle
    ]
    assert list(admin.messages("orders", 1 << 42)) == []
    first = admin.messages("orders")
    next(first)
    assert isinstance(first, Generator)
    first.close()
    assert {track.group: track.status for track in admin.message_tracks(found)}["CG"] is TrackStatus.NOT_ONLINE
    with pytest.raises(ConsumerNotOnline):
        admin.consume_directly(found, "CG")


def test_dead_letters_go_back(cluster: Embedded, admin: SyncAdmin) -> None:
    """Dead letters are resent with their ids to their group only; the originals stay."""
    assert list(admin.resend_dead_letters("never-failed")) == []
    admin.create_topic(TopicConfig("letters", 1, 1))
    wait_until(lambda: "letters" in admin.topics())
    with (
        SyncProducer("PG", cluster.namesrv_address) as producer,
        SyncConsumer("DG", cluster.namesrv_address, {"letters": "*"}, config=QUICK) as consumer,
    ):
        ids = {producer.send(Message("letters", b"%d" % number, keys="bad")).msg_id for number in range(2)}
        for _ in range(2):
            delivery = consumer.receive(20_000)
            assert delivery is not None
            delivery.retry(-1)
        wait_until(lambda: dlq_topic("DG") in admin.topics())
        wait_until(lambda: {letter.msg_id for letter in admin.messages(dlq_topic("DG"))} == ids)
        letters = list(admin.messages(dlq_topic("DG")))
        chosen = letters[0].msg_id
        (resent,) = admin.resend_dead_letters("DG", msg_ids=frozenset({chosen}))
        assert resent.error is None
        delivery = consumer.receive(20_000)
        assert delivery is not None
        assert (delivery.topic, delivery.msg_id, delivery.keys) == ("letters", chosen, ("bad",))
        delivery.ack()
        (resent,) = admin.resend_dead_letters("DG", to_topic=True, count_max=1)
        delivery = consumer.receive(20_000)
        assert delivery is not None
        assert delivery.queue.topic == "letters"
        assert delivery.properties["ORIGIN_MESSAGE_ID"]
        delivery.ack()
        assert len(list(admin.messages(dlq_topic("DG")))) == 2


def test_brokers_and_name_servers(admin: SyncAdmin) -> None:
    """Versions, permissions, and values that name servers keep."""
    brokers = admin.brokers()
    assert {(one.name, one.broker_id, one.version) for one in brokers} == {(name, 0, "V5_3_3") for name in BROKERS}
    assert admin.brokers("nowhere") == []
    assert all(count > 0 for count in admin.wipe_write_perm("broker-a").values())
    assert all(count > 0 for count in admin.add_write_perm("broker-a").values())
    assert admin.kv_get("N", "k") is None
    assert admin.kv_list("N") == {}
    assert admin.kv_put("N", "k", "v=1").complete
    assert (admin.kv_get("N", "k"), admin.kv_list("N")) == ("v=1", {"k": "v=1"})
    assert admin.kv_delete("N", "k").complete
    assert "listenPort" in next(iter(admin.namesrv_config().values()))


def test_users_and_policies(admin: SyncAdmin) -> None:
    """Users and policies are created, changed, listed and deleted on every broker."""
    assert admin.create_user("ann", "secret-1").complete
    assert admin.update_user("ann", user_status="disable").complete
    assert {user.user_status for user in admin.user("ann").values() if user} == {"disable"}
    assert all([user.username for user in users] == ["ann"] for users in admin.users("an").values())
    assert admin.users("nobody").values() == [[], []]
    assert admin.user("bob").values() == [None, None]
    assert admin.create_acl(
        "User:ann", ["Topic:orders", "Group:CG"], ["Pub", "Sub"], source_ips=["10.0.0.0/8"]
    ).complete
    assert admin.update_acl("User:ann", ["Topic:orders"], ["Pub"], decision="Deny").complete
    for acl in admin.acl("User:ann").values():
        assert acl is not None
        entries = {entry.resource: entry for policy in acl.policies for entry in policy.entries}
        assert entries["Topic:orders"].decision == "Deny"
        assert entries["Group:CG"].source_ips == ("10.0.0.0/8",)
    assert admin.delete_acl("User:ann", resource="Topic:orders").complete
    assert all(len(acls) == 1 for acls in admin.acls("ann").values())
    assert admin.delete_acl("User:ann").complete
    assert admin.delete_user("ann").complete


def test_upkeep_and_settings_at_run_time(admin: SyncAdmin) -> None:
    """Every master does the work, or reports why not."""
    assert admin.clean_unused_topics().complete
    assert admin.clean_expired_queues().complete
    assert admin.delete_expired_logs().complete
    assert admin.set_broker_config({"fileReservedTime": "71"}, broker="broker-a").complete
    kept = {name: admin.broker_config(address)["fileReservedTime"] for name, address in admin.masters().items()}
    assert kept == {"broker-a": "71", "broker-b": "72"}
    assert not admin.set_broker_config({"brokerName": "x\ny"}).complete
    assert admin.set_namesrv_config({"orderMessageEnable": "true"}).complete
    (settings,) = admin.namesrv_config().values()
    assert settings["orderMessageEnable"] == "true"
    address = admin.masters()["broker-a"]
    assert admin.broker_stats(address, "TOPIC_PUT_NUMS", "orders").stats_day.sum >= 0
    assert "CG" in admin.broker_consume_stats(address).consume_stats
    assert admin.ha_status(address).startswith("{")
    assert admin.delay_offsets(address).offset_table is not None


def test_what_a_live_group_says(cluster: Embedded, admin: SyncAdmin) -> None:
    """An online group returns its offsets in memory, its delay, its filter's result for an entry, and consumes
    directly."""
    handled: list[bytes] = []
    consumer = SyncConsumer("CG3", cluster.namesrv_address, {"orders": "A"}, config=QUICK)
    running = threading.Thread(target=consumer.run, args=(lambda delivery: handled.append(delivery.body),))
    running.start()
    try:
        wait_until(lambda: len(handled) >= 10)
        wait_until(lambda: all(one.connection_set for one in admin.group_connections("CG3").values()))
        status = admin.consumer_status("CG3", "orders")
        assert status.complete
        assert all(one.consumer_table for one in status.values())
        assert all(one.consume_time_span_set for one in admin.consume_time_spans("CG3", "orders").values())
        queue = admin.queues("orders")[0]
        assert [entry.eval for entry in admin.consume_queue(queue, 0, 1, group="CG3").queue_data] == [True]
        message = admin.message_at_offset(queue, 0)
        count = len(handled)
        done = admin.consume_directly(message, "CG3")
        assert [result.consume_result for result in done.values()] == ["CR_SUCCESS"]
        assert handled[count:] == [message.body]
        wait_until(lambda: {track.group: track.status for track in admin.message_tracks(message)}["CG3"] == "CONSUMED")
        gone = admin.consume_directly(message, "CG3", client_id="nobody")
        assert (dict(gone.found), list(gone.failures)) == ({}, ["nobody"])
    finally:
        consumer.close()
        running.join(60)
