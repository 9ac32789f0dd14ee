"""Requests that mqadmin 4.9 sent to a 4.9.7 broker, sent to ours: our replies have the fields and values that it
read."""

import json
from itertools import pairwise
from typing import Any

import pytest

from mqtrail.broker import BrokerConfig, properties_text
from mqtrail.wire import KvTable, RequestCode, ResponseCode, loads, properties_of

from ..test_golden import FRAMES, NOT_COMPARED, bench_like_apache, header_of, recast

# clusterList, and exportMetrics, which ends without a file where one of the first two is missing.
FIGURES = ("putTps", "getTransferedTps", "brokerVersionDesc", "commitLogDiskRatio", "consumeQueueDiskRatio")
COUNTS = [f"msg{what}Total{when}Morning" for what in ("Put", "Get") for when in ("Today", "Yesterday")]
# exportConfigs, which ends without a file where one is missing.
SETTINGS = (
    *("brokerClusterName", "brokerId", "brokerName", "brokerRole", "fileReservedTime", "filterServerNums"),
    *("flushDiskType", "maxMessageSize", "messageDelayLevel", "msgTraceTopicName", "slaveReadEnable", "traceOn"),
    *("traceTopicEnable", "useTLS", "autoCreateTopicEnable", "autoCreateSubscriptionGroup"),
)


# Where a 5.x broker, and ours, answers otherwise (docs/reference/deviations.md): a group that is not there is refused,
# and offsets are reset although no member is online.
AS_5 = {
    RequestCode.UPDATE_CONSUMER_OFFSET: ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
    RequestCode.INVOKE_BROKER_TO_RESET_OFFSET: ResponseCode.SUCCESS,
}


def recorded() -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """Return mqadmin's requests and the 4.9.7 broker's replies."""
    rows = [json.loads(line) for line in FRAMES.read_text().splitlines()]
    return [
        (request, reply)
        for request, reply in pairwise(rows)
        if request["release"] == reply["release"] == "4.9.7"
        and request["direction"] == "client>broker"
        and request["session"].startswith("mqadmin ")
        and (request["kind"], reply["kind"]) == ("request", "reply")
        and reply["request_code"] == request["code"]
        and request["code"] not in NOT_COMPARED
    ]


def asked_again(code: int) -> tuple[bytes, bytes]:
    """Return the bodies of the recorded reply and of ours to the same request."""
    request, reply = next(pair for pair in recorded() if pair[0]["code"] == code)
    header = header_of(request)
    assert header["version"] < 410
    found = bench_like_apache().ask(code, header.get("extFields"), version=header["version"])
    assert found.code == header_of(reply)["code"] == 0
    return bytes.fromhex(reply["body_hex"]), found.body


@pytest.mark.parametrize(
    ("request_row", "reply_row"), [pytest.param(*pair, id=pair[0]["session"]) for pair in recorded()]
)
def test_answers_as_recorded(request_row: dict[str, Any], reply_row: dict[str, Any]) -> None:
    """Our reply has the recorded code, ext fields and members; a 5.x broker adds some."""
    header, expected = header_of(request_row), header_of(reply_row)
    ext = dict(header.get("extFields") or {})
    bench = bench_like_apache()
    recast(bench, header["code"], ext, expected)
    found = bench.ask(header["code"], ext, bytes.fromhex(request_row["body_hex"]), version=header["version"])
    if found.code != expected["code"]:
        assert found.code == AS_5[header["code"]]
        return
    assert found.ext.keys() >= (expected.get("extFields") or {}).keys()
    body = bytes.fromhex(reply_row["body_hex"])
    assert bool(found.body) == bool(body)
    if body[:1] == b"{":
        assert loads(found.body).keys() >= loads(body).keys()


def test_runtime_figures() -> None:
    """28 also has the older spelling of the rate of delivered messages, with the same value; numbers parse."""
    theirs, ours = (KvTable.decode(body).table for body in asked_again(RequestCode.GET_BROKER_RUNTIME_INFO))
    for name in (*FIGURES, *COUNTS):
        assert name in theirs
        assert name in ours
    assert ours["getTransferedTps"] == ours["getTransferredTps"]
    assert all(float(ours[name].split()[0]) >= 0 for name in ("putTps", "getTransferedTps"))
    assert all(int(ours[name]) >= 0 for name in COUNTS)


def test_settings() -> None:
    """26: all exported settings, with the recorded value where both brokers have the same."""
    theirs, ours = (properties_of(body.decode()) for body in asked_again(RequestCode.GET_BROKER_CONFIG))
    for name in SETTINGS:
        assert name in theirs
        assert name in ours
    for name in ("filterServerNums", "slaveReadEnable", "useTLS", "brokerRole", "traceOn", "maxMessageSize"):
        assert ours[name] == theirs[name]


@pytest.mark.parametrize("on", [True, False])
def test_tls_is_reported(on: bool) -> None:
    """useTLS has the value that the node sets."""
    assert properties_of(properties_text(BrokerConfig(use_tls=on)))["useTLS"] == str(on).lower()
