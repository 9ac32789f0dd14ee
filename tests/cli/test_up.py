"""`mqtrail up` as a process: ready, restarted, refused."""

from __future__ import annotations

import json
import os
import signal
import socket
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from mqtrail.cli import run
from mqtrail.cli.config import has_password
from mqtrail.client import (
    Credentials,
    InstanceConfig,
    ProducerConfig,
    SendStatus,
    SyncAdmin,
    SyncProducer,
    TlsClientConfig,
)
from mqtrail.node import shown_url
from mqtrail.store import CommitLogConfig, CommitLogStore, PendingRecord, RealDisk
from mqtrail.wire import Message, MQError, TopicConfig
from tests.waiting import wait_until

FREE = ("--namesrv-port", "0", "--broker-port", "0")


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "mqtrail", *arguments]


@contextmanager
def up(*arguments: str) -> Iterator[dict[str, Any]]:
    """Run it until the block ends; yield the event `ready`. SIGTERM must end it with exit code 0."""
    process = subprocess.Popen(command("up", "--json", *arguments), stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        yield json.loads(process.stdout.readline())
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


@contextmanager
def sending(namesrv: str) -> Iterator[list[str]]:
    """Send until the block ends; yield the errors of sends. Sends that did not fail have the status SEND_OK.

    They have time for a hand-over on a busy machine.
    """
    config = ProducerConfig(send_timeout_ms=60_000)
    failures: list[str] = []
    done: list[SendStatus] = []
    ending = threading.Event()

    def run_sends() -> None:
        with SyncProducer("g", namesrv, config=config) as producer:
            while not ending.is_set():
                try:
                    done.append(producer.send(Message("orders", b"x")).status)
                    done.append(producer.send(Message("orders", b"x"), order_key="k").status)
                except MQError as error:
                    failures.append(str(error))

    thread = threading.Thread(target=run_sends)
    thread.start()
    try:
        yield failures
    finally:
        ending.set()
        thread.join()
    assert set(done) == {SendStatus.SEND_OK}


def refused(*arguments: str) -> tuple[int, str]:
    """Run a command that must not start; return its exit code and output."""
    environ = {key: value for key, value in os.environ.items() if key not in ("NAMESRV_ADDR", "MQTRAIL_DATA")}
    done = subprocess.run(
        command("up", *arguments), capture_output=True, text=True, timeout=30, check=False, env=environ
    )
    assert "Traceback" not in done.stderr
    return done.returncode, done.stderr


def test_up_stores_and_starts_again(tmp_path: Path) -> None:
    """Acknowledged messages survive a restart; the settings of flags reach the broker."""
    data = str(tmp_path / "data")
    flags = ("--data", data, "--segment-size", "16MiB", "--flush", "sync", "--broker-trace")
    with up(*flags, *FREE, "--set", "message_delay_level=1s 2s", "--set", "default_topic_queue_nums=3") as ready:
        assert ready["event"] == "ready"
        assert ready["flush"] == "SYNC_FLUSH"
        assert ready["recovery"]["broker-a"]["unclean"] is False
        with SyncProducer("g", ready["namesrv"]) as producer:
            sent = producer.send(Message("orders", b"x", keys="k"))
        with SyncAdmin(ready["namesrv"]) as admin:
            settings = admin.broker_config(ready["brokers"]["broker-a"])
            assert settings["messageDelayLevel"] == "1s 2s"
            assert settings["flushDiskType"] == "SYNC_FLUSH"
            assert "RMQ_SYS_TRACE_TOPIC" in admin.topics()
            assert len(admin.queues("orders")) == 3
    with up(*flags, *FREE) as ready, SyncAdmin(ready["namesrv"]) as admin:
        [message] = admin.query("orders", "k").messages
        assert message.msg_id == sent.msg_id


@pytest.mark.slow
def test_damage_is_refused_by_name_and_skipped_if_configured(tmp_path: Path) -> None:
    """The error names position, file and option; with the option, the start reports the skipped range."""
    folder = tmp_path / "data" / "broker-a"
    store = CommitLogStore(RealDisk(folder), CommitLogConfig(segment_size=16 << 20))
    one = PendingRecord("orders", 0, b"body", b"", 0, 1, bytes(8))
    tickets = store.append([one, one, one], 1_000)
    store.flush()
    store.abandon()
    with (folder / "commitlog" / ("0" * 20)).open("r+b") as file:
        file.seek(tickets[1].physical_offset + 88)
        file.write(b"BODY")
    flags = ("--data", str(tmp_path / "data"), "--segment-size", "16MiB", *FREE)
    code, message = refused(*flags)
    assert code != 0
    assert f"damage in the CommitLog at physical offset {tickets[1].physical_offset} " in message
    assert "--skip-damaged" in message
    with up(*flags, "--skip-damaged") as ready:
        ((first, end, _),) = ready["recovery"]["broker-a"]["damage"]
        assert (first, end) == (tickets[1].physical_offset, tickets[2].physical_offset)


@pytest.mark.slow
def test_several_brokers_and_one_that_joins(tmp_path: Path) -> None:
    """Two brokers of one node and a third of another share one name server."""
    first = ("--data", str(tmp_path / "a"), "--brokers", "2", "--segment-size", "16MiB", "--no-trace-topic")
    with (
        up(*first, *FREE) as ready,
        up(
            *("--data", str(tmp_path / "b"), "--join", ready["namesrv"], "--broker-name", "broker-x"),
            *("--broker-port", "0", "--segment-size", "16MiB"),
        ) as joined,
    ):
        assert list(ready["brokers"]) == ["broker-a", "broker-b"]
        assert joined["namesrv"] == ready["namesrv"]
        with SyncAdmin(ready["namesrv"]) as admin:
            assert set(admin.masters()) == {"broker-a", "broker-b", "broker-x"}


@pytest.mark.slow
def test_a_broker_conf_with_access_control_and_several_brokers(tmp_path: Path) -> None:
    """Apache's file: a name for each broker, its ACL files, its metrics; a client that signs is accepted."""
    conf = tmp_path / "broker.conf"
    conf.write_text(
        f"brokerName=shop\naclEnable=true\nrocketmqHome={tmp_path}\nmetricsPromExporterPort=0\nflushDiskType=SYNC_FLUSH\n"
    )
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "plain_acl.yml").write_text(
        "accounts: [{accessKey: operator, secretKey: operator1, admin: true}]"
    )
    flags = ("--data", str(tmp_path / "data"), "--broker-conf", str(conf), "--brokers", "2", "--segment-size", "16MiB")
    with up(*flags, *FREE) as ready:
        assert list(ready["brokers"]) == list(ready["metrics"]) == ["shop-1", "shop-2"]
        assert (ready["flush"], ready["open_to_others"]) == ("SYNC_FLUSH", False)
        credentials = Credentials(access_key="operator", secret_key="operator1")
        with SyncAdmin(ready["namesrv"], config=InstanceConfig(credentials=credentials)) as admin:
            assert admin.create_topic(TopicConfig("orders", 1, 1)).complete
        with SyncAdmin(ready["namesrv"]) as admin:
            assert not admin.create_topic(TopicConfig("more", 1, 1)).complete


@pytest.mark.slow
def test_a_self_signed_certificate(tmp_path: Path) -> None:
    """Clients that trust the printed file connect by TLS, also to brokers in separate processes."""
    flags = ("--data", str(tmp_path / "data"), "--tls", "self-signed", "--brokers", "2", "--segment-size", "16MiB")
    with up(*flags, *FREE) as ready:
        tls = TlsClientConfig(enable=True, verify_host=True, trust_path=Path(ready["certificate"]))
        with SyncAdmin(ready["namesrv"], config=InstanceConfig(tls=tls)) as admin:
            done = admin.create_topic(TopicConfig("orders", 1, 1))
            assert len(done.found) == 2, done.failures


@pytest.mark.parametrize("way", ["file", "stdin", "environment", "settings"])
def test_secrets_come_by_other_ways_than_the_command_line(tmp_path: Path, way: str) -> None:
    """Each source creates the first user; no process of the node shows the password in its arguments."""
    user = '{"username":"root","password":"sesame-42"}'
    brokers = ("broker-a", "broker-b") if way == "file" else ("broker-a",)  # a process takes a second to start
    flags = ["--data", str(tmp_path / "data"), "--brokers", str(len(brokers)), "--segment-size", "16MiB"]
    flags += ["--set", "authentication=true", *FREE]
    environ, given = dict(os.environ), None
    if way == "file":
        (tmp_path / "user").write_text(f"{user}\n")
        flags += ["--set-file", f"init_user={tmp_path / 'user'}"]
    elif way == "stdin":
        flags += ["--set-file", "broker.init_user=-"]
        given = user
    elif way == "environment":
        environ["MQTRAIL_INIT_USER"] = user
    else:
        (tmp_path / "mqtrail.toml").write_text(f"[broker]\ninit_user = '{user}'\n")
        flags += ["--config", str(tmp_path / "mqtrail.toml")]
    process = subprocess.Popen(
        command("up", "--json", *flags), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environ
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        if given is not None:
            process.stdin.write(given)
        process.stdin.close()
        ready = json.loads(process.stdout.readline())
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        assert len(children) == (2 if len(brokers) == 2 else 0)
        for process_id in (str(process.pid), *children):
            assert b"sesame" not in Path(f"/proc/{process_id}/cmdline").read_bytes()
        credentials = Credentials(access_key="root", secret_key="sesame-42")
        with SyncAdmin(ready["namesrv"], config=InstanceConfig(credentials=credentials)) as admin:
            done = admin.create_topic(TopicConfig("orders", 1, 1))
            assert done.complete, done.failures
        for name in brokers:
            assert (tmp_path / "data" / name / "config" / "users.json").stat().st_mode & 0o777 == 0o600
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


@pytest.mark.parametrize("setting", ["init_user", "broker.inner_credentials", "tls_server.key_password"])
def test_secrets_on_the_command_line_are_refused(setting: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The error names the other ways and does not repeat the secret."""
    code = run(("up", "--set", f"{setting}=sesame-42"))
    reported = capsys.readouterr().err
    assert code == 2
    assert "--set-file" in reported
    assert "MQTRAIL_" in reported
    assert "sesame" not in reported


@pytest.mark.slow
def test_a_folder_in_use_is_refused(tmp_path: Path) -> None:
    """One process per folder; the error names the holder."""
    flags = ("--data", str(tmp_path / "data"), "--segment-size", "16MiB", *FREE)
    with up(*flags):
        code, reported = refused(*flags)
    assert code == 1
    assert "is in use by process" in reported


def test_a_port_in_use_is_refused(tmp_path: Path) -> None:
    """The error names the port and the remedy."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        code, reported = refused("--data", str(tmp_path / "data"), "--namesrv-port", port, "--broker-port", "0")
    assert code == 1
    assert port in reported


def test_wrong_settings_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit code 2, one line with found and expected; nothing is started or created."""
    monkeypatch.chdir(tmp_path)
    for flags, expected in (
        (("--set", "long_poling=true"), "expected long_polling"),
        (("--set", "nonsense"), "expected field=value"),
        (("--set", "disk.full=1"), "expected one of broker, store"),
        (("--flush", "never"), "expected async or sync"),
        (("--tls", "please"), "expected self-signed"),
        (("--store", "sqlite:///m.db", "--flush", "async"), "expected sync"),
        (("--segment-size", "huge"), "expected a whole number"),
        (("--join", "nowhere"), "expected host:port"),
        (("--conf", "none.conf"), "cannot be read"),
        (("--config", "none.toml"), "found no settings file"),
    ):
        code = run(("up", *flags))
        reported = capsys.readouterr().err
        assert (code, reported.count("\n")) == (2, 1), reported
        assert expected in reported
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_up_on_tables(tmp_path: Path) -> None:
    """--store keeps messages in tables, commits before it acknowledges, and finds them again after a restart."""
    url = f"sqlite:///{tmp_path / 'messages.db'}"
    flags = ("--data", str(tmp_path / "data"), "--store", url, *FREE)
    with up(*flags) as ready:
        assert (ready["store"], ready["flush"]) == (url, "SYNC_FLUSH")
        with SyncProducer("g", ready["namesrv"]) as producer:
            producer.send(Message("orders", b"x", keys="k"))
    with closing(sqlite3.connect(tmp_path / "messages.db")) as sql:
        ((table,),) = sql.execute("SELECT table_name FROM mqtrail_queue WHERE topic = 'orders'")
        assert sql.execute(f"SELECT id, msg_keys, CAST(body AS TEXT) FROM {table}").fetchall() == [(0, "k", "x")]
    with up(*flags) as ready, SyncAdmin(ready["namesrv"]) as admin:
        assert [message.body for message in admin.query("orders", "k").messages] == [b"x"]
    code, reported = refused("--data", str(tmp_path / "data"), *FREE)
    assert (code, "pass --store" in reported) == (1, True), reported
    code, reported = refused("--data", str(tmp_path / "b"), "--store", url, "--brokers", "2", *FREE)
    assert (code, "found 2 brokers on one database" in reported) == (1, True), reported


def test_the_password_of_a_database_is_not_shown(capsys: pytest.CaptureFixture[str]) -> None:
    """Only its place is; a warning says how to keep it from the command line."""
    for url, shown in (
        ("postgresql://me:se%2Fcret@db:5432/orders", "postgresql://me:***@db:5432/orders"),
        ("postgresql://me@db/orders", "postgresql://me@db/orders"),
        ("sqlite:////var/a:b@c/m.db", "sqlite:////var/a:b@c/m.db"),
        ("", ""),
    ):
        assert (shown_url(url), has_password(url)) == (shown, shown != url)
    code = run(("up", "--store", "postgresql://me:cret@db/x", "--flush", "async"))
    reported = capsys.readouterr().err
    assert (code, "MQTRAIL_STORE_URL" in reported, "cret" in reported) == (2, True, False), reported


def test_an_unreachable_name_server_does_not_keep_a_broker_down(tmp_path: Path) -> None:
    """A broker that joins starts, and registers when the name server is up."""
    with up(
        *("--data", str(tmp_path), "--join", "127.0.0.1:1", "--broker-port", "0", "--segment-size", "16MiB")
    ) as reported:
        assert list(reported["brokers"]) == ["broker-a"]


def test_the_start_is_short_and_light() -> None:
    """Running a broker loads neither DuckDB, Spark nor Arrow, nor the other commands."""
    script = (
        "import sys, mqtrail.cli.app, mqtrail.node\n"
        "mqtrail.cli.app.build('up')\n"
        "assert 'mqtrail.cli.up' in sys.modules\n"
        "assert not {'mqtrail.cli.acl', 'mqtrail.cli.queue', 'mqtrail.client'} & set(sys.modules)\n"
        "heavy = {'duckdb', 'pyspark', 'pyarrow', 'deltalake', 'pandas', 'rich', 'structlog'} & set(sys.modules)\n"
        "print(sorted(heavy))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=30)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (["--ha", "3", "--mode", "other"], "expected controller or dledger or classic"),
        (["--ha", "3", "--brokers", "2"], "expected one of them"),
        (["--mode", "classic"], "found --mode without --ha"),
        (["--controller-port", "0"], "found --controller-port without --ha"),
        (["--ha", "1"], "--ha"),
    ],
)
def test_wrong_groups_are_refused(words: list[str], found: str, capsys: pytest.CaptureFixture[str]) -> None:
    """--ha names what it cannot do; its options mean nothing without it."""
    assert run(["up", *words]) == 2
    assert found in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_up_runs_a_group(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Name server, controllers and brokers, each with its address and process, in one folder; the master is changed."""
    patient = ("--set", "slave_timeout_ms=60000")  # a send waits for a slave that stops until the controllers know
    group = ("--ha", "2", "--data", str(tmp_path), "--segment-size", "16MiB", "--controller-port", "0")
    with up(*group, *patient, *FREE) as ready:
        assert list(ready["brokers"]) == ["broker-a-1", "broker-a-2"]
        assert len(ready["controllers"]) == 3
        assert len(set(ready["processes"].values())) == 6
        with SyncProducer("g", ready["namesrv"]) as producer:
            producer.send(Message("orders", b"x", keys="k"))
        with SyncAdmin(ready["namesrv"]) as admin:
            assert admin.broker_config(ready["brokers"]["broker-a-1"])["allAckInSyncStateSet"] == "true"
            wait_until(lambda: len(admin.replica_group("broker-a").in_sync_replicas) == 2)
        assert run(["cluster", "transfer", "broker-a", "--yes", "--json", "--namesrv", ready["namesrv"]]) == 0
        done = json.loads(capsys.readouterr().out)
        assert (done["master_before"], done["master"], done["in_sync"]) == (1, 2, [1, 2])
        assert done["address"] == ready["brokers"]["broker-a-2"]
        assert run(["cluster", "ha", "--json", "--namesrv", ready["namesrv"]]) == 0
        shown = json.loads(capsys.readouterr().out)
        assert {(row["id"], row["role"], row["in_sync"]) for row in shown["brokers"]} == {
            (1, "slave", True),
            (2, "master", True),
        }
        (known,) = shown["groups"]
        assert (known["in_sync"], known["last_election"]["reason"]) == ([1, 2], "requested")
        assert run(["cluster", "elect", "broker-a", "--yes", "--namesrv", ready["namesrv"]]) == 0
        assert "it stays" in capsys.readouterr().out
        with sending(ready["namesrv"]) as failures:
            assert run(["cluster", "restart", "broker-a", "--yes", "--namesrv", ready["namesrv"]]) == 0
        words = [line.rpartition("): ")[2] for line in capsys.readouterr().out.splitlines()]
        assert words[:2] == ["restarting", "in sync again"]
        assert words[3:5] == ["restarting", "in sync again"]
        assert failures == []
