"""`mqtrail migrate` without servers: its status, and options that are refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mqtrail.cli.exits import Exit
from mqtrail.clock import now_ms
from mqtrail.migrate import BridgeState, HeaderRule, KafkaRecord, ResultLog, TeeSide
from mqtrail.migrate.copies import CopyFile, CopyHead, TeeCopy
from mqtrail.migrate.state import alone, save_bridge
from mqtrail.wire import MessageQueue
from tests.cli.conftest import Command, commands


@pytest.fixture
def mqtrail(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Command:
    """Runs one command line in an empty folder."""
    monkeypatch.chdir(tmp_path)
    return commands(capsys)


def test_status(mqtrail: Command) -> None:
    """Of the folder: lag, what was sent, left out and lost, whether a bridge has it."""
    assert mqtrail("migrate", "status").code == Exit.CANNOT_LOOK
    state = BridgeState(cluster="c", topic="orders", target="shop", order="key", headers="encode", queues=["b/0"])
    state.next_offsets, state.ends, state.ends_ms = {"0": 7, "1": 1}, {"0": 9, "1": 1}, now_ms()
    state.counts, state.skipped, state.lost = {"value": 5, "tombstone": 1}, ["orders:0:3"], {"1": 4}
    Path("migration").mkdir()
    save_bridge(Path("migration"), state)
    found = mqtrail("migrate", "status")
    assert found.code == Exit.OK
    for text in (
        "Kafka topic orders, 2 partitions",
        "topic shop, 1 queues, order by key",
        "2 offsets behind Kafka",
        "6 records (1 tombstone, 5 value)",
        "orders:0:3",
        "4 of partition 1",
    ):
        assert text in found.out
    with alone(Path("migration")):
        facts = json.loads(mqtrail("migrate", "status", "--json").out)
    assert (facts["is_running"], facts["sent"], facts["lag"]) == (True, 6, 2)


def test_copies(mqtrail: Command) -> None:
    """Of the folder: how many, to which side, why; to send those to Kafka, its address is needed."""
    assert mqtrail("migrate", "copies").out == "no failed copies\n"
    folder = Path("migration")
    folder.mkdir()
    file = CopyFile(folder, CopyHead(topic="t", target="t", to=TeeSide.KAFKA, headers=HeaderRule.ENCODE))
    record = KafkaRecord("t", 1, -1, -1, b"k", b"v")
    file.add(TeeCopy(record, MessageQueue("t", "broker-a", 3), 7), "away")
    found = mqtrail("migrate", "copies")
    assert found.code == Exit.FAILED
    assert "of a running tee" in found.out
    file.close()
    facts = json.loads(mqtrail("migrate", "copies", "--json").out)
    assert (facts["sent"], len(facts["files"])) == (0, 1)
    assert facts["files"][0]["errors"] == ["broker-a/3 at 7: away"]
    refused = mqtrail("migrate", "copies", "--send", "--namesrv", "127.0.0.1:1")
    assert (refused.code, "expected its address: pass --kafka" in refused.err) == (Exit.FAILED, True)


def test_results(mqtrail: Command) -> None:
    """Of both sides, by key, in a range of time; the exit code is that of a comparison."""
    folder = Path("migration")
    with ResultLog(folder, TeeSide.KAFKA) as old, ResultLog(folder, TeeSide.ROCKETMQ) as new:
        old.add("a", {"total": 5}, time_ms=1_000)
        new.add("a", {"total": 6}, time_ms=1_000)
    found = mqtrail("migrate", "results")
    assert found.code == Exit.FAILED
    assert "found: 1 results of kafka, 1 of rocketmq, 1 keys" in found.out
    assert '{"total": 5} and ' in found.out
    assert mqtrail("migrate", "results", "--accept", "different").code == Exit.CANNOT_LOOK, "nothing is equal"
    assert json.loads(mqtrail("migrate", "results", "--from", "1h", "--json").out)["records"] == 0


@pytest.mark.parametrize(
    ("options", "code", "found"),
    [
        (("bridge", "t", "--kafka", "host"), Exit.USAGE, "--kafka: found 'host', expected host:port"),
        (("bridge", "t", "--kafka", "h:1", "--order", "x"), Exit.USAGE, "expected partition or key"),
        (("bridge", "t", "--kafka", "h:1", "--headers", "x"), Exit.USAGE, "expected encode or refuse"),
        (("bridge", "t", "--kafka", "h:1", "--start", "x"), Exit.USAGE, "--start"),
        (("bridge", "t", "--kafka", "h:1", "--skip-record", "17"), Exit.USAGE, "expected topic:partition:offset"),
        (("bridge", "t", "--kafka", "h:1", "--retry-for", "x"), Exit.USAGE, "--retry-for"),
        (("bridge", "a.b", "--kafka", "h:1"), Exit.FAILED, "a.b"),
        (("bridge", "t", "--kafka", "h:1", "--kafka-settings", "none"), Exit.USAGE, "none cannot be read"),
        (("bridge", "t", "--kafka", "h:1", "--kafka-settings", "bad"), Exit.FAILED, "found 'acks' in line 2"),
        (("offsets", "g", "--kafka", "h:1"), Exit.FAILED, "found no bridge in 'migration'"),
        (
            ("compare", "t", "--kafka", "h:1", "--accept", "x"),
            Exit.USAGE,
            "--accept: found 'x', expected one of missing",
        ),
        (("compare", "t", "--kafka", "h:1", "--grace", "x"), Exit.USAGE, "--grace"),
        (("back", "g", "--kafka", "h:1"), Exit.FAILED, "found neither a bridge nor a tee"),
        (("back", "g", "--kafka", "h"), Exit.USAGE, "--kafka: found 'h'"),
        (("copies", "--retry-for", "x"), Exit.USAGE, "--retry-for"),
        (("results",), Exit.FAILED, "found no results of kafka in 'migration'"),
        (("results", "--accept", "x"), Exit.USAGE, "--accept: found 'x'"),
        (("gate", "--compare-age", "x"), Exit.USAGE, "--compare-age"),
        (("gate",), Exit.FAILED, "found no bridge in 'migration'"),
        (("offsets", "g", "--kafka", "h:99999"), Exit.USAGE, "ports from 1 to 65535"),
        (("offsets", "a.b", "--kafka", "h:1"), Exit.FAILED, "a.b"),
    ],
)
def test_refused(options: tuple[str, ...], code: int, found: str, mqtrail: Command) -> None:
    """What was found, what was expected, in one line, before anything is asked."""
    Path("bad").write_text("# log in\nacks = all\n")
    Path("bad").chmod(0o600)
    done = mqtrail("migrate", *options)
    assert (done.code, done.out) == (code, "")
    assert found in done.err
    assert done.err.count("\n") == 1


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("security.protocol=SASL-SSL", "found 'SASL-SSL' as security.protocol .* expected one of PLAINTEXT, SSL"),
        ("security.protocol=SASL_PLAINTEXT", "found none as sasl.username"),
        ("sasl.mechanism=SCRAM", "found 'SCRAM' as sasl.mechanism .* expected one of PLAIN, SCRAM-SHA-256"),
        ("sasl.mechanism=GSSAPI", "found 'GSSAPI' as sasl.mechanism"),
    ],
)
def test_settings_of_kafka_that_no_client_takes(text: str, found: str) -> None:
    """Each with what was expected."""
    from mqtrail.migrate import MigrateError, kafka_settings

    with pytest.raises(MigrateError, match=found):
        kafka_settings(text)


def test_settings_of_kafka() -> None:
    """Names of librdkafka become options; the password is not shown."""
    from mqtrail.migrate import KafkaConfig, kafka_settings

    settings = kafka_settings("security.protocol=SASL_PLAINTEXT\n\nsasl.username = a\nsasl.password=b=c\n")
    config = KafkaConfig("h:1", settings)
    options = config.options()
    assert (options["security_protocol"], options["sasl_plain_username"]) == ("SASL_PLAINTEXT", "a")
    assert options["sasl_plain_password"] == "b=c"
    assert "b=c" not in repr(config)
