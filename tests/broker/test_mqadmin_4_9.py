"""What mqadmin 4.9 takes from answers without asking whether it is there: the recorded 4.9.7 told it, and so do we."""

import json
from typing import Any

import pytest

from mqtrail.broker import BrokerConfig, properties_text
from mqtrail.broker.settings import read_properties
from mqtrail.wire import KvTable, RequestCode

from .test_golden import FRAMES, bench_like_apache, header_of

# clusterList, and exportMetrics, which ends without a file where one of the first two is missing.
FIGURES = ("putTps", "getTransferedTps", "brokerVersionDesc", "commitLogDiskRatio", "consumeQueueDiskRatio")
COUNTS = [f"msg{what}Total{when}Morning" for what in ("Put", "Get") for when in ("Today", "Yesterday")]
# exportConfigs, which ends without a file where one is missing.
SETTINGS = (
    *("brokerClusterName", "brokerId", "brokerName", "brokerRole", "fileReservedTime", "filterServerNums"),
    *("flushDiskType", "maxMessageSize", "messageDelayLevel", "msgTraceTopicName", "slaveReadEnable", "traceOn"),
    *("traceTopicEnable", "useTLS", "autoCreateTopicEnable", "autoCreateSubscriptionGroup"),
)


def recorded(code: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return mqadmin's request with this code and the 4.9.7 broker's reply."""
    rows = [json.loads(line) for line in FRAMES.read_text().splitlines()]
    of_4_9 = [row for row in rows if row["release"] == "4.9.7"]
    request = next(row for row in of_4_9 if row["kind"] == "request" and row["code"] == code)
    reply = next(row for row in of_4_9 if row["kind"] == "reply" and row["request_code"] == code)
    return request, reply


def asked_again(code: int) -> tuple[bytes, bytes]:
    """Return the bodies of the recorded reply and of ours to the same request."""
    request, reply = recorded(code)
    header = header_of(request)
    assert header["version"] < 410
    found = bench_like_apache().ask(code, header.get("extFields"), version=header["version"])
    assert found.code == header_of(reply)["code"] == 0
    return bytes.fromhex(reply["body_hex"]), found.body


def test_runtime_figures() -> None:
    """28: the older spelling of the rate of messages handed out too, with the same value; numbers can be read."""
    theirs, ours = (KvTable.decode(body).table for body in asked_again(RequestCode.GET_BROKER_RUNTIME_INFO))
    for name in (*FIGURES, *COUNTS):
        assert name in theirs
        assert name in ours
    assert ours["getTransferedTps"] == ours["getTransferredTps"]
    assert all(float(ours[name].split()[0]) >= 0 for name in ("putTps", "getTransferedTps"))
    assert all(int(ours[name]) >= 0 for name in COUNTS)


def test_settings() -> None:
    """26: all that is exported, and where it says the same of both, with the recorded value."""
    theirs, ours = (read_properties(body.decode()) for body in asked_again(RequestCode.GET_BROKER_CONFIG))
    for name in SETTINGS:
        assert name in theirs
        assert name in ours
    for name in ("filterServerNums", "slaveReadEnable", "useTLS", "brokerRole", "traceOn", "maxMessageSize"):
        assert ours[name] == theirs[name]


@pytest.mark.parametrize("on", [True, False])
def test_tls_is_told(on: bool) -> None:
    """useTLS is the node's word."""
    assert read_properties(properties_text(BrokerConfig(use_tls=on)))["useTLS"] == str(on).lower()
