"""Which sends the broker refuses, or counts for another group, beyond the scenario send_checks.txt."""

from __future__ import annotations

from mqtrail.wire import CreateTopicHeader, RequestCode, ResponseCode, SubscriptionGroupConfig, SubscriptionGroupTable

from ..helpers import Bench


def _topic(bench: Bench, name: str, perm: int = 6) -> None:
    header = CreateTopicHeader(name, 2, 2, perm)
    assert bench.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, header.to_ext()).code == ResponseCode.SUCCESS


def test_the_broker_chooses_no_queue_of_a_topic_that_is_not_writable() -> None:
    """RocketMQ's clients choose queues and see the permission in the route; who leaves the choice to us sees none."""
    bench = Bench()
    _topic(bench, "closed", perm=4)
    assert bench.send("closed", queue_id=-1).code == ResponseCode.NO_PERMISSION
    assert bench.send("closed", queue_id=0).code == ResponseCode.SUCCESS
    _topic(bench, "closed")
    assert bench.send("closed", queue_id=-1).code == ResponseCode.SUCCESS


def test_a_message_for_a_pop_retry_topic_belongs_to_the_group_that_pops() -> None:
    """Not to a new group with the rest of the name, which automatic creation would make."""
    bench = Bench(auto_create_group=True)
    _topic(bench, "orders")
    bench.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=SubscriptionGroupConfig("picky").encode())
    assert bench.send("%RETRY%picky_orders").code == ResponseCode.SUCCESS
    table = SubscriptionGroupTable.decode(bench.ask(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG).body)
    assert table.business_groups() == {"picky"}
    assert bench.send("%RETRY%other").code == ResponseCode.SUCCESS
    table = SubscriptionGroupTable.decode(bench.ask(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG).body)
    assert table.business_groups() == {"picky", "other"}
