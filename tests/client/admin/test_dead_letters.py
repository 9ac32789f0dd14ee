"""Dead letters with a forged topic: any sender can set the property RETRY_TOPIC."""

from mqtrail.client import Admin
from mqtrail.wire import encode_properties

from ..fake_cluster import fake_cluster

DLQ = "%DLQ%CG"
FORGED = ("RMQ_SYS_TRACE_TOPIC", "SCHEDULE_TOPIC_XXXX", "%RETRY%other", DLQ, "no/such name", "x" * 300, "missing")


async def test_a_letter_goes_to_an_ordinary_existing_topic_alone() -> None:
    """System, retry and dead-letter topics, malformed and unknown names are refused, each letter with its reason."""
    topics = {"orders": 1, DLQ: 1, "TBW102": 1, **dict.fromkeys(FORGED[:3], 1)}
    async with fake_cluster(topics) as cluster:
        (broker,) = cluster.brokers
        for topic in (*FORGED, "orders"):
            broker.store(DLQ, 0, topic.encode(), encode_properties({"UNIQ_KEY": topic[:9], "RETRY_TOPIC": topic}))
        broker.store(DLQ, 0, b"none", encode_properties({"UNIQ_KEY": "none"}))
        async with Admin(cluster.namesrv) as admin:
            resent = [one async for one in admin.resend_dead_letters("CG", to_topic=True)]
        assert [one.message.body.decode() for one in resent if one.error is None] == ["orders"]
        assert all(str(one.error) for one in resent if one.result is None)
        assert "expected an application's topic" in str(resent[-1].error)
        assert cluster.bodies("orders") == [b"orders"]
        stored = {topic for topic, _ in broker.queues if broker.stored(topic)}
        assert stored == {DLQ, "orders"}
