"""`cluster drain` and `cluster restart` without a group: a group is in test_up.py."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import pytest

from mqtrail.cli.exits import UsageError
from mqtrail.cli.maintenance import _restart, _successor
from mqtrail.client import ClientError, NoControllers, SyncAdmin, SyncProducer
from mqtrail.testing import embedded
from mqtrail.wire import Message, MessageQueue, ReplicaState, SubscriptionGroupConfig, TopicConfig
from tests.cli.conftest import Command
from tests.waiting import wait_until

AT_ONCE = ("--yes", "--no-stop", "--wait", "0", "--quiet", "0", "--json")


def test_a_broker_is_drained(mqtrail: Command) -> None:
    """It leaves the producers' routes at once, and is drained when its groups have read everything; restart refuses."""
    with embedded() as server, SyncAdmin(server.namesrv_address) as admin:
        admin.create_topic(TopicConfig("orders", 1, 1))
        admin.create_group(SubscriptionGroupConfig("CG"))
        with SyncProducer("PG", server.namesrv_address) as producer:
            producer.send(Message("orders", b"x"))
            queue = MessageQueue("orders", "broker-a", 0)
            admin.set_offsets("CG", {queue: 0})
            drain = ("cluster", "drain", "broker-a", *AT_ONCE, "--namesrv", server.namesrv_address)
            waits = mqtrail(*drain)
            assert (waits.code, waits.json["waiting"]) == (1, ["1 messages for group CG"])
            wait_until(lambda: admin.route("orders").queue_datas[0].perm == 4)
            admin.set_offsets("CG", {queue: 1})
            done = mqtrail(*drain)
            assert (done.code, done.json["waiting"], done.json["handed_over"]) == (0, [], False)
            producer.send(Message("orders", b"x", delay_level=18), queue=queue)
            assert "1 messages of delay level 18" in mqtrail(*drain).json["waiting"]
        refused = mqtrail("cluster", "restart", "broker-a", "--yes", "--namesrv", server.namesrv_address)
        assert (refused.code, "expected enableControllerMode" in refused.err) == (1, True)


@pytest.mark.parametrize("error", [ClientError, NoControllers])
def test_whether_a_replica_takes_over(error: type[ClientError]) -> None:
    """None does outside of controller mode. Where no controller answers this is unknown, so drain fails."""

    def replica_group(broker: str) -> None:
        raise error("no controller answered")

    admin = cast(SyncAdmin, SimpleNamespace(replica_group=replica_group))
    if error is NoControllers:
        assert not _successor(admin, "broker-a")
        return
    with pytest.raises(ClientError, match="no controller answered"):
        _successor(admin, "broker-a")


@pytest.mark.parametrize(
    ("command", "found"), [("false {host}", "exit code 1 of false 10.0.0.1"), ("/nowhere/x", "No such file")]
)
def test_a_command_that_restarts_a_broker(command: str, found: str) -> None:
    """Its words get host, address and id; a failure is an error."""
    member = ReplicaState(True, "10.0.0.1:10911", 3)
    _restart("test {host}{address}{id} = 10.0.0.110.0.0.1:109113", member)
    with pytest.raises(UsageError, match=found):
        _restart(command, member)
