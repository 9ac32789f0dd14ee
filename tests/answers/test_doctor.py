"""The doctor: which codes a cluster allows to judge, and why not the others."""

from __future__ import annotations

import time

from mqtrail.answers import CodeHealth, Diagnosis, examine
from mqtrail.testing import embedded
from mqtrail.trail import CODES
from tests.answers.conftest import Shop


def look(namesrv: str) -> Diagnosis:
    return examine(namesrv, time.time_ns() // 1_000_000)


def by_code(found: Diagnosis) -> dict[str, CodeHealth]:
    return {one.code: one for one in found.codes}


def test_a_cluster_that_traces(shop: Shop) -> None:
    """Brokers, the records in the trace topic by type and layout, groups that trace, and every code."""
    found = look(shop.namesrv)
    [broker] = found.brokers
    assert (broker.name, broker.version, broker.why) == ("broker-a", "V5_3_3", "")
    assert broker.delay_levels.startswith("1s 5s")
    assert found.topics == ("orders", "stock")
    assert found.trace.exists
    assert {"Pub/14", "SubBefore/8", "SubAfter/9"} <= set(found.trace.records)
    assert found.trace.numbered_clients == 2
    assert found.trace.producer_groups == ("shop",)
    assert {group.name: group.is_traced for group in found.groups}["billing"]
    codes = by_code(found)
    assert set(codes) == set(CODES)
    assert codes["CONSUMED"].judged == "yes"


def test_a_cluster_without_a_trace_topic() -> None:
    """Codes that need the trace cannot be judged, and the remedy is named."""
    with embedded() as broker:
        found = look(broker.namesrv_address)
    assert not found.trace.exists
    codes = by_code(found)
    assert codes["SEND_OK"].judged == "no"
    assert [one.name for one in codes["SEND_OK"].reasons] == ["trace_topic_missing"]
    assert list(found.advice) == [str(one) for one in found.findings]
    assert found.findings[-1].name == "read_only"
    assert "traceTopicEnable" in codes["SEND_OK"].why
    assert codes["WAITING"].judged == "no"  # there is also no business topic


def test_no_cluster() -> None:
    """A name server that is down is not reported as an empty cluster."""
    found = look("127.0.0.1:1")
    assert found.brokers == ()
    assert "could not be queried" in found.why
