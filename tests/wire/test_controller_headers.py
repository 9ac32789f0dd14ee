"""Headers and bodies of controller mode, as a controller and a broker of 5.3.3 wrote them."""

from typing import Any

import pytest

from mqtrail.wire import (
    ApplyBrokerIdHeader,
    BrokerHeartbeatHeader,
    BrokerIdReply,
    ControllerMetadataReply,
    EpochCache,
    EpochEntry,
    MasterReply,
    SyncStateSet,
)

ME = {"clusterName": "DefaultCluster", "brokerName": "broker-a"}


@pytest.mark.parametrize(
    ("header", "ext"),
    [
        (
            ControllerMetadataReply("controllers", "n0", "127.0.0.1:17830", True, "n0:127.0.0.1:17830;"),
            {
                "controllerLeaderId": "n0",
                "controllerLeaderAddress": "127.0.0.1:17830",
                "isLeader": "true",
                "peers": "n0:127.0.0.1:17830;",
                "group": "controllers",
            },
        ),
        (BrokerIdReply("DefaultCluster", "broker-a", 1), {**ME, "nextBrokerId": "1"}),
        (
            ApplyBrokerIdHeader("DefaultCluster", "broker-a", 2, "127.0.0.1:1;1700000000000"),
            {**ME, "appliedBrokerId": "2", "registerCheckCode": "127.0.0.1:1;1700000000000"},
        ),
        (
            MasterReply(1, "127.0.0.1:13658", 5),
            {"masterBrokerId": "1", "masterAddress": "127.0.0.1:13658", "masterEpoch": "5"},
        ),
        (
            BrokerHeartbeatHeader("DefaultCluster", "127.0.0.1:1", "broker-a", 2, 10_000, 1, 0, 0, 2_147_483_647),
            {
                **ME,
                "brokerAddr": "127.0.0.1:1",
                "brokerId": "2",
                "epoch": "1",
                "maxOffset": "0",
                "confirmOffset": "0",
                "heartbeatTimeoutMills": "10000",
                "electionPriority": "2147483647",
            },
        ),
    ],
)
def test_golden_headers(header: Any, ext: dict[str, str]) -> None:
    """Both directions; a request that is written here was answered with success."""
    assert type(header).from_ext(ext) == header
    assert header.to_ext() == ext


@pytest.mark.parametrize(
    ("body", "data"),
    [
        (SyncStateSet((1,), 2), b'{"syncStateSet":[1],"syncStateSetEpoch":2}'),
        (
            EpochCache(
                0,
                "broker-a",
                "DefaultCluster",
                (EpochEntry(654, 1, 0), EpochEntry((1 << 63) - 1, 5, 654)),
                1090,
            ),
            b'{"brokerId":0,"brokerName":"broker-a","clusterName":"DefaultCluster","epochList":[{"endOffset":654,'
            b'"epoch":1,"startOffset":0},{"endOffset":9223372036854775807,"epoch":5,"startOffset":654}],"maxOffset":1090}',
        ),
    ],
)
def test_golden_bodies(body: Any, data: bytes) -> None:
    assert type(body).decode(data) == body
    assert body.encode() == data


def test_the_body_of_an_election() -> None:
    """It has the set alone."""
    assert SyncStateSet.decode(b'{"syncStateSet":[1]}') == SyncStateSet((1,), 0)
