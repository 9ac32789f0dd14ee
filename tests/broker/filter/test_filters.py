"""Pulls, held pulls and heartbeats with SQL92 expressions, and the refusals of invalid or unsupported ones."""

import pytest

from mqtrail.broker.bounds import EXPRESSION_LENGTH_MAX
from mqtrail.broker.filter import FilterTable
from mqtrail.broker.filter.filters import NODES_A_READ_MAX
from mqtrail.broker.filter.table import DEAD_KEPT_MS
from mqtrail.store import ConfigFileStore, MemoryDisk
from mqtrail.wire import (
    ConsumerData,
    HeartbeatData,
    PullHeader,
    PullSysFlag,
    RemotingCommand,
    RequestCode,
    ResponseCode,
    Send,
    SubscriptionData,
    decode_records,
    dumps,
)
from mqtrail.wire.sql92 import expressions

from ..helpers import NOW_MS, PEER, Bench


def sql_pull(
    bench: Bench,
    expression: str | None,
    queue_offset: int = 0,
    *,
    hold_ms: int = 0,
    kind: str = "SQL92",
    topic: str = "orders",
    sub_version: int = 0,
) -> list[Send]:
    """Pull with an expression in the request, or with the group's (None)."""
    flags = (PullSysFlag.SUSPEND if hold_ms else 0) | (0 if expression is None else PullSysFlag.SUBSCRIPTION)
    header = PullHeader(
        "g", topic, 0, queue_offset, 32, flags, 0, hold_ms, expression, sub_version=sub_version, expression_type=kind
    )
    return bench.tell(RequestCode.PULL_MESSAGE, header.to_ext())


def answer_of(sends: list[Send]) -> RemotingCommand:
    (send,) = sends
    return send.command


def sql_heartbeat(bench: Bench, expression: str, version: int = NOW_MS, *, topic: str = "orders") -> None:
    subscriptions = (
        SubscriptionData.build(topic, expression, "SQL92", sub_version=version),
        SubscriptionData.build("%RETRY%g", "*", sub_version=version),
    )
    data = HeartbeatData("c1", (), (ConsumerData("g", subscription_data_set=subscriptions),))
    assert bench.ask(RequestCode.HEART_BEAT, body=data.encode()).code == 0


def bodies(reply: RemotingCommand) -> list[bytes]:
    return [message.body for message in decode_records(reply.body)]


@pytest.fixture
def bench() -> Bench:
    bench = Bench(property_filter=True)
    for number in range(10):
        bench.send(body=str(number).encode(), price=str(number), region="eu" if number % 2 else "us")
    return bench


def test_a_pull_with_an_expression(bench: Bench) -> None:
    """The pull returns the matching messages in order, and continues after the scanned ones."""
    reply = answer_of(sql_pull(bench, "price > 4 AND region = 'eu'"))
    assert (reply.code, reply.remark, bodies(reply)) == (0, "FOUND", [b"5", b"7", b"9"])
    assert reply.ext["nextBeginOffset"] == "10"


def test_nothing_matches(bench: Bench) -> None:
    """The code is 20: pull again at once, after the scanned messages."""
    reply = answer_of(sql_pull(bench, "price > 100"))
    assert (reply.code, reply.remark, reply.ext["nextBeginOffset"]) == (20, "NO_MATCHED_MESSAGE", "10")


def test_the_scan_of_a_pull_is_bounded() -> None:
    """A pull looks at 800 entries at most, as Java's 16 000 bytes of a ConsumeQueue."""
    bench = Bench(property_filter=True)
    for _ in range(900):
        bench.send(body=b"x")
    assert answer_of(sql_pull(bench, "a = 1")).ext["nextBeginOffset"] == "800"


def test_lite_pulls_filter_too(bench: Bench) -> None:
    """Code 361 is served like code 11."""
    header = PullHeader("g", "orders", 0, 0, 32, 20, 0, 0, "price = 3", expression_type="SQL92")
    assert bodies(bench.ask(RequestCode.LITE_PULL_MESSAGE, header.to_ext())) == [b"3"]


@pytest.mark.parametrize(
    ("expression", "kind", "code", "words"),
    [
        ("price >", "SQL92", 23, "Invalid MessageSelector"),
        ("", "SQL92", 23, "Expression can't be null"),
        ("price > 1", "XPATH", 23, "expected TAG or SQL92"),
    ],
)
def test_a_broken_expression_is_refused(bench: Bench, expression: str, kind: str, code: int, words: str) -> None:
    """Code 23 with the reason."""
    reply = answer_of(sql_pull(bench, expression, kind=kind))
    assert reply.code == code
    assert words in (reply.remark or "")


def test_expressions_are_off_by_default() -> None:
    """As on Apache's broker, the code is 1 and the remark names the setting to enable."""
    bench = Bench()
    bench.send(price="1")
    reply = answer_of(sql_pull(bench, "price > 0"))
    assert reply.code == 1
    assert (reply.remark or "").startswith("The broker does not support consumer to filter message by SQL92")
    sql_heartbeat(bench, "price > 0")
    assert answer_of(sql_pull(bench, None)).code == 1


def test_held_pulls_are_woken_by_what_they_want(bench: Bench) -> None:
    """A message or a batch that the filter excludes does not end the wait."""
    assert sql_pull(bench, "price > 100", 10, hold_ms=5_000) == []
    assert len(bench.tell(*send_request(bench, price="50"))) == 1  # the send's own answer
    own, woken = bench.tell(*send_request(bench, price="101"))
    assert own.command.code == 0
    assert (woken.peer, bodies(woken.command)) == (PEER.id, [b"x"])
    assert woken.command.ext["nextBeginOffset"] == "12"


def send_request(bench: Bench, **properties: str) -> tuple[int, dict[str, str], bytes]:
    from mqtrail.wire import SendMessageHeader, encode_properties

    header = SendMessageHeader(
        "pg", "orders", queue_id=0, born_timestamp=bench.now_ms, properties=encode_properties(properties)
    )
    return RequestCode.SEND_MESSAGE_V2, header.to_ext_v2(), b"x"


def test_expressions_of_heartbeats(bench: Bench) -> None:
    """A pull without an expression uses that of its group's latest heartbeat."""
    sql_heartbeat(bench, "price = 3", 5)
    assert bodies(answer_of(sql_pull(bench, None, sub_version=5))) == [b"3"]
    sql_heartbeat(bench, "price = 4", 4)  # older: ignored
    assert bodies(answer_of(sql_pull(bench, None, sub_version=5))) == [b"3"]
    sql_heartbeat(bench, "price = 4", 6)
    assert bodies(answer_of(sql_pull(bench, None, sub_version=6))) == [b"4"]


def test_a_heartbeat_with_a_broken_expression(bench: Bench) -> None:
    """The code is 27: no valid expression is left, also when it replaced a valid one."""
    sql_heartbeat(bench, "price >", 5)
    reply = answer_of(sql_pull(bench, None))
    assert reply.code == 27
    assert (reply.remark or "").startswith("The broker's consumer filter data is not exist")
    sql_heartbeat(bench, "price = 3", 6)
    assert answer_of(sql_pull(bench, None)).code == 0
    sql_heartbeat(bench, "price =", 7)
    assert answer_of(sql_pull(bench, None)).code == 27


def test_a_pull_newer_than_the_filter(bench: Bench) -> None:
    """The code is 25 if the subscription is older, 28 if only the filter is."""
    sql_heartbeat(bench, "price = 3", 5)
    assert answer_of(sql_pull(bench, None, sub_version=6)).code == 25
    group = bench.broker.clients.consumer_group("g")
    assert group is not None
    group.subscriptions["orders"] = SubscriptionData.build("orders", "price = 3", "SQL92", sub_version=6)
    reply = answer_of(sql_pull(bench, None, sub_version=6))
    assert reply.code == 28
    assert "found version 5 of orders, expected 6" in (reply.remark or "")


@pytest.mark.parametrize(
    ("on", "kind", "expression", "code"),
    [
        (True, "SQL92", "a > 1", 0),
        (True, "SQL92", "a >", 23),
        (True, "XPATH", "a > 1", 23),
        (False, "SQL92", "a > 1", 1),
        (False, "TAG", "a || b", 0),
        (True, "TAG", "a" * EXPRESSION_LENGTH_MAX, 0),
        (True, "TAG", "a" * (EXPRESSION_LENGTH_MAX + 1), 29),
    ],
)
def test_check_client_config(on: bool, kind: str, expression: str, code: int) -> None:
    """A consumer sends 46 before it starts."""
    subscription = SubscriptionData.build("orders", expression, kind)
    body = dumps({"clientId": "c", "group": "g", "subscriptionData": subscription.members()})
    assert Bench(property_filter=on).ask(RequestCode.CHECK_CLIENT_CONFIG, body=body).code == code


def test_a_retry_topic_is_filtered_as_its_messages_were() -> None:
    """filterSupportRetry: for %RETRY%, the expression of the message's original topic applies."""
    bench = Bench(property_filter=True, filter_retry=True)
    bench.send()
    retry = SubscriptionData.build("%RETRY%g", "a = 9", "SQL92", sub_version=1)
    orders = SubscriptionData.build("orders", "a = 1", "SQL92", sub_version=1)
    data = HeartbeatData("c1", (), (ConsumerData("g", subscription_data_set=(retry, orders)),))
    bench.ask(RequestCode.HEART_BEAT, body=data.encode())
    for value, topic in (("1", "orders"), ("2", "orders"), ("3", "other")):
        bench.send("%RETRY%g", value.encode(), a=value, RETRY_TOPIC=topic)
    assert bodies(answer_of(sql_pull(bench, None, topic="%RETRY%g"))) == [b"1", b"3"]


def test_filters_survive_a_restart_and_die_with_their_group(bench: Bench) -> None:
    """consumerFilter.json has Apache's format; a filter that is unused for a day is removed."""
    sql_heartbeat(bench, "price = 3", 5)
    bench.advance(5_000)
    document = bench.files.load("consumerFilter.json")
    assert document is not None
    kept = document["filterDataByTopic"]["orders"]["groupFilterData"]["g"]
    assert {name: kept[name] for name in ("expression", "expressionType", "clientVersion", "deadTime")} == {
        "expression": "price = 3",
        "expressionType": "SQL92",
        "clientVersion": 5,
        "deadTime": 0,
    }
    assert kept["bloomFilterData"]["bitNum"] == 112
    bench.restart()
    again = bench.broker.filters.get("orders", "g")
    assert again is not None
    assert again.data.is_dead
    sql_heartbeat(bench, "price = 3", 5)
    assert bodies(answer_of(sql_pull(bench, None))) == [b"3"]
    bench.broker.disconnected(PEER.id)
    bench.advance(DEAD_KEPT_MS + 60_000)
    assert len(bench.broker.filters) == 0


def test_a_topic_that_is_given_up(bench: Bench) -> None:
    """The filter is inactive from the first heartbeat that no longer names the topic."""
    sql_heartbeat(bench, "price = 3", 5)
    sql_heartbeat(bench, "a = 1", 6, topic="payments")
    kept = bench.broker.filters.get("orders", "g")
    assert kept is not None
    assert kept.data.is_dead


def test_a_heartbeat_compiles_nothing(bench: Bench) -> None:
    """Expressions are compiled by the pulls that need them, one per pull."""
    for number in range(10):
        sql_heartbeat(bench, " or ".join([f"a={number}"] * 300), NOW_MS + number, topic=f"topic{number}")
    compiled = expressions._compile.cache_info().misses
    sql_heartbeat(bench, "a = 12345", NOW_MS + 20)
    assert expressions._compile.cache_info().misses == compiled
    answer_of(sql_pull(bench, None))
    assert expressions._compile.cache_info().misses == compiled + 1


def test_a_costly_expression_looks_at_few_messages_at_once(bench: Bench) -> None:
    """The expression's size bounds the scan of a pull; the next pull continues where it stopped."""
    for _ in range(200):
        bench.send(topic="many", a="2")
    expression = " or ".join(["a=1"] * 300)
    reply = answer_of(sql_pull(bench, expression, topic="many"))
    assert reply.code == ResponseCode.PULL_RETRY_IMMEDIATELY
    scanned = int(reply.ext["nextBeginOffset"])
    assert 1 <= scanned <= NODES_A_READ_MAX // 300
    assert int(answer_of(sql_pull(bench, expression, scanned, topic="many")).ext["nextBeginOffset"]) > scanned


def test_a_file_with_an_expression_that_no_longer_compiles() -> None:
    """The broker starts with the file, and pulls that use the expression are refused."""
    disk = MemoryDisk()
    disk.replace(
        "config/consumerFilter.json",
        b'{"filterDataByTopic":{"t":{"groupFilterData":{"g":{"bornTime":5,"clientVersion":1,"consumerGroup":"g",'
        b'"deadTime":0,"expression":"a >","expressionType":"SQL92","topic":"t"}},"topic":"t"}}}',
    )
    table = FilterTable(ConfigFileStore(disk), NOW_MS)
    assert len(table) == 1
    assert table.get("t", "g") is None
