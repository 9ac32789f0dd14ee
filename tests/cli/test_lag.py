"""`mqtrail lag` on our own brokers: what is printed, what is unknown, and exit codes."""

from __future__ import annotations

import io
import socket
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console, RenderableType

from mqtrail.cli.draw_lag import cluster_lag, group_lag
from mqtrail.client import (
    ClusterLag,
    GroupLag,
    MessageQueue,
    QueueReading,
    SyncAdmin,
    SyncProducer,
    Trend,
    TrendState,
    WaitingMessage,
)
from mqtrail.client.admin.backlog import queue_lag, sum_of, with_age
from mqtrail.testing import Embedded, embedded
from mqtrail.wire import Message, SubscriptionGroupConfig, TopicConfig
from tests.answers.lakes import make_lake
from tests.answers.test_lake_lag import shop
from tests.cli.conftest import Command, CommandResult, commands
from tests.trail.story import unique_id

TOPIC = "orders"
QUEUES = 2
PER_QUEUE = 5


def groups(result: CommandResult) -> dict[str, Any]:
    """Return the groups of a JSON answer by name."""
    return {group["group_name"]: group for group in result.json["groups"]}


@pytest.fixture(scope="module")
def server() -> Iterator[Embedded]:
    """A topic of two queues with five messages each, and groups at several places."""
    with embedded() as running:
        with SyncAdmin(running.namesrv_address) as admin:
            for topic in (TOPIC, "%RETRY%Retries"):
                assert admin.create_topic(TopicConfig(topic, QUEUES, QUEUES)).complete
            queues = [MessageQueue(TOPIC, "broker-a", number) for number in range(QUEUES)]
            with SyncProducer("PG", running.namesrv_address) as producer:
                for number in range(QUEUES * PER_QUEUE):
                    producer.send(Message(TOPIC, b"1", keys=f"k{number}"), queue=queues[number % QUEUES])
                retry = MessageQueue("%RETRY%Retries", "broker-a", 0)
                producer.send(Message("%RETRY%Retries", b"again"), queue=retry)
                producer.send(Message("%RETRY%Retries", b"later", delay_level=18))
            places = {
                "Behind": (1, 3),
                "Done": (PER_QUEUE, PER_QUEUE),
                "Half": (PER_QUEUE, None),
                "Wiped": (PER_QUEUE, 99),
                "Retries": (PER_QUEUE, PER_QUEUE),
                "Idle": (None, None),
            }
            for group, offsets in places.items():
                assert admin.create_group(SubscriptionGroupConfig(group)).complete
                for queue, offset in zip(queues, offsets, strict=True):
                    if offset is not None:
                        admin.set_offset(group, queue, offset)
        yield running


@pytest.fixture
def mqtrail(
    server: Embedded, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Command:
    """Runs one command line with the cluster, without any settings of this machine."""
    monkeypatch.setenv("NAMESRV_ADDR", server.namesrv_address)
    monkeypatch.chdir(tmp_path)
    return commands(capsys)


def test_all_groups(mqtrail: Command) -> None:
    """The longest wait first; unknown is ?, a lower bound has ≥; groups without lag are counted only."""
    result = mqtrail("lag")
    assert result.code == 0
    lines = result.out.splitlines()
    rows = {line.split()[0]: line.split() for line in lines[2:6]}
    assert sorted(list(rows)[:2]) == ["Behind", "Retries"], "their first messages were stored within milliseconds"
    assert list(rows)[2:] == ["Half", "Wiped"]
    assert rows["Behind"][1] == "6"
    assert rows["Retries"][1] == "0"
    assert rows["Retries"][2] != "-", "how long the message in the retry topic has waited"
    assert rows["Retries"][-2:] == ["1", "1"]
    assert rows["Half"][1:4] == ["≥", "0", "?"]
    assert rows["Wiped"][1:4] == ["≥", "0", "?"]
    assert "2 groups with queues of unknown lag" in result.out
    assert "1 group without lag" in result.out
    assert "1 group with neither offsets nor members" in result.out
    assert "2 groups more: raise --rows" in mqtrail("lag", "--rows", "2").out


def test_all_groups_as_json(mqtrail: Command) -> None:
    """Every group, with nulls for what is unknown."""
    found = mqtrail("lag", "--json")
    assert {name: group["topics"]["lag_count"] for name, group in groups(found).items()} == {
        "Behind": 6,
        "Retries": 0,
        "Half": 0,
        "Wiped": 0,
        "Done": 0,
    }
    assert {name: group["lag_ms"] for name, group in groups(found).items() if group["is_unknown"]} == {
        "Half": None,
        "Wiped": None,
    }
    assert groups(found)["Behind"]["lag_ms"] > 0
    assert groups(found)["Done"]["lag_ms"] == 0
    assert groups(found)["Retries"]["retry"]["lag_count"] == 1
    assert groups(found)["Retries"]["delayed_count"] == 1
    assert found.json["idle_groups"] == ["Idle"]
    assert found.json["over_ms"] is None
    assert groups(found)["Behind"]["trend"]["state"] == "UNKNOWN"


def test_one_group(mqtrail: Command) -> None:
    """Its queues, and the messages that have waited longest, with id, key, time, queue and offset."""
    found = mqtrail("lag", "show", "Behind", "--messages", "3", "--json")
    assert found.code == 0
    queues = {queue["queue_id"]: queue["lag_count"] for queue in groups(found)["Behind"]["queues"]}
    assert queues == {0: 4, 1: 2}
    oldest = found.json["oldest"]
    assert [(one["keys"], one["queue_id"], one["queue_offset"]) for one in oldest] == [
        ("k2", 0, 1),
        ("k4", 0, 2),
        ("k6", 0, 3),
    ]
    assert all(one["msg_id"] and one["store_ms"] and one["lag_ms"] >= 0 for one in oldest)
    text = mqtrail("lag", "show", "Behind").out
    assert oldest[0]["msg_id"] in text
    assert "found by looking at the first 6 of 6 waiting messages" in text


def test_one_group_with_unknown_queues(mqtrail: Command) -> None:
    """The reasons are printed, also those of a queue that lost messages. They are no failure of a broker."""
    half, wiped = mqtrail("lag", "show", "Half"), mqtrail("lag", "show", "Wiped")
    assert (half.code, "1 of 2 queues unknown: the group has no committed offset" in half.out) == (0, True)
    assert (wiped.code, "past the queue's end" in wiped.out) == (0, True)


def test_groups_and_what_is_unknown_of_them(mqtrail: Command) -> None:
    """`group list` and `group show` have the same numbers: a queue without an offset is not one without a lag."""
    listed = {row.pop("group"): row for row in mqtrail("group", "list", "--json").json["groups"]}
    assert listed["Behind"] == {"members": 0, "behind": 6, "unknown_queues": 0}
    assert listed["Half"] == {"members": 0, "behind": 0, "unknown_queues": 1}
    assert listed["Idle"] == {"members": 0, "behind": None, "unknown_queues": None}
    shown = mqtrail("group", "show", "Half", "--json").json
    assert [(one["consumed"], one["behind"]) for one in shown["queues"]] == [(PER_QUEUE, 0), (None, None)]
    assert (shown["behind"], shown["unknown_queues"]) == (0, 1)
    assert "behind: ≥ 0 messages" in mqtrail("group", "show", "Half").out
    table = {line.split()[0]: line.split()[1:] for line in mqtrail("group", "list").out.splitlines()}
    assert (table["Half"], table["Idle"], table["Behind"]) == (["0", "≥", "0"], ["0", "?"], ["0", "6"])
    assert mqtrail("group", "show", "Nobody").code == 1


def test_a_trend(mqtrail: Command) -> None:
    """A trend needs two readings; no message is read or written between them."""
    found = mqtrail("lag", "--over", "1s", "--json")
    assert found.json["over_ms"] == 1_000
    assert groups(found)["Behind"]["trend"] == {
        "state": "STEADY",
        "consumed_per_s": 0.0,
        "produced_per_s": 0.0,
        "drain_s": None,
    }
    assert groups(found)["Done"]["trend"]["state"] == "EMPTY"
    assert groups(found)["Half"]["trend"]["state"] == "UNKNOWN"
    for wrong in ("0s", "2h", "soon"):
        assert mqtrail("lag", "--over", wrong).code == 2


def test_no_such_group(mqtrail: Command) -> None:
    """An unknown group is exit code 1. A group without offsets exists."""
    result = mqtrail("lag", "show", "Nobody")
    assert (result.code, result.out) == (1, "")
    assert "found no group 'Nobody'" in result.err
    assert mqtrail("lag", "show", "Idle").code == 0


def test_a_broker_that_does_not_answer(tmp_path: Path, mqtrail: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its queues are unknown with the reason, the others are shown, and the exit code is 3."""
    Path("mqtrail.toml").write_text("[client]\nrequest_timeout_ms = 300\n")
    with embedded(brokers=2) as running, socket.create_server(("127.0.0.1", 0)) as mute:
        with SyncAdmin(running.namesrv_address) as admin:
            assert admin.create_topic(TopicConfig(TOPIC, 1, 1)).complete
            assert admin.create_group(SubscriptionGroupConfig("G")).complete
            for name in ("broker-a", "broker-b"):
                admin.set_offset("G", MessageQueue(TOPIC, name, 0), 0)
            real = admin.masters

            def masters(*arguments: Any) -> dict[str, str]:
                return real(*arguments) | {"broker-b": f"127.0.0.1:{mute.getsockname()[1]}"}

            addresses = masters()

        async def with_a_mute_one(self: Any, cluster: str | None = None) -> dict[str, str]:
            return addresses

        monkeypatch.setattr("mqtrail.client.Admin.masters", with_a_mute_one)
        monkeypatch.setenv("NAMESRV_ADDR", running.namesrv_address)
        result = mqtrail("lag")
        assert result.code == 3
        assert result.err.startswith("mqtrail: broker broker-b did not answer, so its queues are unknown: ")
        row = result.out.splitlines()[2].split()
        assert row[:4] == ["G", "≥", "0", "?"]
        assert row[-1] == "?", "copies that wait on the mute broker are unknown"
        shown = mqtrail("lag", "show", "G", "--json")
        assert shown.code == 3
        assert {queue["broker_name"]: queue["lag_count"] for queue in groups(shown)["G"]["queues"]} == {
            "broker-a": 0,
            "broker-b": None,
        }


def test_no_name_server(mqtrail: Command) -> None:
    """Without a name server all lag is unknown: exit code 3."""
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    result = mqtrail("lag", "--namesrv", f"127.0.0.1:{port}")
    assert (result.code, result.out) == (3, "")


WIDTH = 80
LONG = "a-group-of-a-big-company-with-a-name-of-sixty-four-characters-x9"


def many(count: int) -> ClusterLag:
    """As many groups with long names and big numbers."""
    trend = Trend(TrendState.DRAINS, 12_345.6, 1_234.5, 86_399.0)
    unknown_place = QueueReading("a-topic-with-a-long-name", "broker-with-a-name", 7)
    unknown = queue_lag(unknown_place)
    queue = QueueReading(
        "a-topic-with-a-long-name", "broker-with-a-name", 7, 1_234_567_890, 1_234_500_000, 9_876_543_210
    )
    waits = replace(with_age(queue_lag(queue), 7 * 86_400_000), trend=trend)
    queues = (waits, unknown)
    oldest = WaitingMessage("a-topic", "broker-a", 7, 1_234_567_890, "C0" * 16, LONG, 1_700_000_000_000, 5, False)
    groups = [
        GroupLag(f"{LONG[:-3]}{number:03}", 3, sum_of(queues), sum_of(queues), 12_345, trend, ("why not",), queues)
        for number in range(count)
    ]
    return ClusterLag(1_700_000_000_000, tuple(groups), (), 10_000, ("idle",), (oldest,) * 10, 640)


def drawn(answer: RenderableType) -> list[str]:
    """Return the lines on a terminal of 80 columns."""
    file = io.StringIO()
    Console(file=file, width=WIDTH, force_terminal=False, highlight=False, markup=False).print(answer)
    return file.getvalue().splitlines()


def test_all_groups_fit_a_screen() -> None:
    """80 columns; numbers are never cut, and long names are folded."""
    lines = drawn(cluster_lag(many(200), 16))
    assert all(len(line) <= WIDTH for line in lines)
    assert "8641975320" in "".join(lines)
    assert any("184 groups more" in line for line in lines)
    assert "…" not in "".join(lines)


def test_one_group_fits_a_screen() -> None:
    """80 columns; ids are never cut."""
    lines = drawn(group_lag(many(1), 16))
    assert all(len(line) <= WIDTH for line in lines)
    assert sum("C0" * 16 in line for line in lines) == 10
    assert "…" not in "".join(lines)


@pytest.mark.slow
def test_lag_of_a_lake(mqtrail: Command, tmp_path: Path) -> None:
    """The last sample of a lake answers, and the cluster is not asked."""
    make_lake(tmp_path / "lake", shop("c"))
    found = mqtrail("lag", "--lake", "lake", "--json")
    assert found.code == 0
    billing = groups(found)["billing"]
    assert (billing["topics"]["lag_count"], billing["delayed_count"], billing["queues"]) == (30, 2, [])
    shown = mqtrail("lag", "--lake", "lake", "--over", "5m")
    assert "empty in" in shown.out
    one = mqtrail("lag", "show", "billing", "--lake", "lake", "--messages", "1")
    assert unique_id(1) in one.out
    absent = mqtrail("lag", "show", "nobody", "--lake", "lake")
    assert (absent.code, "samples of the lake" in absent.err) == (1, True)
    assert mqtrail("lag", "--lake", "lake", "--namesrv", "127.0.0.1:1").code == 2
