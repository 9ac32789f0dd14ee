"""Settings from file, environment and flags: their precedence, and invalid ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from mqtrail.cli.broker_conf import conf_settings, read_broker_conf
from mqtrail.cli.config import ROOMS, Config, Layer, convert, load, namesrv_addresses
from mqtrail.cli.exits import UsageError
from mqtrail.cli.options import duration_ms, moment_ms
from mqtrail.net import TlsClientConfig
from mqtrail.wire import Credentials, Host

FILE = """
namesrv = "10.0.0.5:9876"
data = "/var/lib/mqtrail"
[broker]
message_delay_level = "1s 2s"
long_polling = false
[store]
segment_size = "64MiB"
delete_hours = [3, 4]
[producer]
retry_count = 5
[trace]
linger_ms = 7
[judge]
hung_ms = 15_000
"""


def read(tmp_path: Path, text: str = FILE, environment: dict[str, str] | None = None) -> Config:
    path = tmp_path / "mqtrail.toml"
    path.write_text(text)
    return load(path, environment or {})


def test_a_file_fills_every_rooms_object(tmp_path: Path) -> None:
    """One table per config class, with defaults for missing keys."""
    config = read(tmp_path)
    broker = config.room("broker")
    assert (broker.message_delay_level, broker.long_polling, broker.broker_name) == ("1s 2s", False, "broker-a")
    store = config.room("store")
    assert (store.segment_size, store.delete_hours) == (64 << 20, (3, 4))
    producer = config.client("producer")
    assert (producer.retry_count, producer.trace.linger_ms) == (5, 7)
    assert config.room("judge").changed() == {"hung_ms": 15_000}


def test_flags_outweigh_environment_outweighs_file_outweighs_default(tmp_path: Path) -> None:
    """The precedence, tested for each kind of setting."""
    assert load(None, {}).namesrv(None) == "127.0.0.1:9876"
    assert read(tmp_path).namesrv(None) == "10.0.0.5:9876"
    both = read(tmp_path, environment={"NAMESRV_ADDR": "10.0.0.6:9876", "MQTRAIL_DATA": "/elsewhere"})
    assert both.namesrv(None) == "10.0.0.6:9876"
    assert both.namesrv("10.0.0.7:9876") == "10.0.0.7:9876"
    assert (both.data(None), both.data(Path("mine"))) == (Path("/elsewhere"), Path("mine"))
    below = Layer("default", {"long_polling": True, "trace_topic_enable": True})
    broker = both.room("broker", Layer("--set", {"broker_trace": "true"}), below=below)
    assert (broker.long_polling, broker.trace_topic_enable, broker.broker_trace) == (False, True, True)


def test_tables_of_topics(tmp_path: Path) -> None:
    """A setting by topic is a table within its table."""
    text = "[consumer]\nrate_max = 5\n[consumer.topic_rate_max]\norders = 2\n"
    consumer = read(tmp_path, text).client("consumer")
    assert (consumer.rate_max, consumer.topic_rate_max) == (5.0, {"orders": 2.0})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[brokr]\n", "found 'brokr', expected namesrv, data, lake, tls_config, [broker]"),
        ("[broker]\nlong_poling = true\n", "long_poling: no such setting, expected long_polling"),
        ("[broker]\nlong_polling = 1\n", "found 1, expected true or false"),
        ("[broker]\naddress = '1.2.3.4:1'\n", "no such setting"),
        ("[broker]\nmessage_size_max = 0\n", "found message_size_max 0 (maxMessageSize), expected 1 or more"),
        ("[store]\nsegment_size = 'big'\n", "found 'big', expected a whole number"),
        ("[consumer]\nmodel = 'X'\n", "expected one of BROADCASTING, CLUSTERING"),
        ("[consumer]\ntopic_rate_max = 3\n", "found 3, expected a table, each value a number"),
        ("[consumer.topic_rate_max]\norders = 0\n", "topic_rate_max 0.0 of topic 'orders', expected more than 0"),
        ("broker = 3\n", "found broker = 3, expected a table"),
        ("spark = 3\n", "found spark = 3, expected a table"),
        ("[spark]\nconf = 3\n", "found conf = a int in [spark], expected [spark.conf]"),
        ("namesrv = 3\n", "found namesrv = 3, expected a string"),
        ("not toml\n", "is not TOML"),
    ],
)
def test_a_wrong_file_is_refused(tmp_path: Path, text: str, message: str) -> None:
    """The error has found, expected, and the source."""

    def use() -> None:
        config = read(tmp_path, text)
        config.namesrv(None)
        for room in ("broker", "store", "consumer"):
            config.room(room)
        config.spark_conf()

    with pytest.raises(UsageError) as raised:
        use()
    assert message in str(raised.value)


def test_a_named_file_must_be_there(tmp_path: Path) -> None:
    """The default file may be missing, but not the file of --config."""
    with pytest.raises(UsageError, match="found no settings file"):
        load(tmp_path / "none.toml", {})


@pytest.mark.parametrize("name", sorted(set(ROOMS) - {"pipeline"}))
def test_every_table_makes_its_object(name: str) -> None:
    """Every class of the table exists, and can be made with its defaults."""
    assert type(Config().room(name)).__name__ == ROOMS[name][1]


@pytest.mark.parametrize("text", ["nowhere", "host:port", "host:0", ":1", "a:1;b"])
def test_a_name_server_is_host_and_port(text: str) -> None:
    """An invalid address is refused before a connection attempt."""
    with pytest.raises(UsageError, match="expected host:port"):
        namesrv_addresses(text)
    assert namesrv_addresses("a:1; [::1]:2") == ("a:1", "[::1]:2")


def test_texts_become_values() -> None:
    """Each kind of field is read from the text of a flag."""
    assert convert("10.0.0.1:5", Host, "x") == Host("10.0.0.1", 5)
    assert convert("", int | None, "x") is None
    assert convert("a,b", tuple[str, ...], "x") == ("a", "b")
    assert convert("0.5", float, "x") == 0.5
    assert convert("2 GiB", int, "x") == 2 << 30
    for value, kind in (("1.5", int), (True, int), (1.5, int), (3, str), (3, tuple[int, ...]), ("x", Host)):
        with pytest.raises(UsageError, match="found"):
            convert(value, kind, "x")


def test_a_broker_conf_is_read(tmp_path: Path) -> None:
    """Apache's keys become settings of broker, store and node; keys without effect are reported."""
    path = tmp_path / "broker.conf"
    path.write_text(
        "# mine\nbrokerName=b1\nflushDiskType = SYNC_FLUSH\nfileReservedTime=48\nlistenPort=1234\n"
        "mappedFileSizeConsumeQueue=6000000\nuseEpollNativeSelector=true\ndeleteWhen=04\n\n"
    )
    conf = read_broker_conf(path)
    assert conf.values["broker"] == {"broker_name": "b1", "sync_flush": True}
    assert conf.values["store"] == {"retention_ms": 172_800_000, "queue_entries": 300_000, "delete_hours": (4,)}
    assert conf.values["node"] == {"broker_port": 1234}
    assert conf.notes == ("useEpollNativeSelector has no effect here",)
    path.write_text("listenPort=x")
    with pytest.raises(UsageError, match="expected a number"):
        read_broker_conf(path)
    with pytest.raises(UsageError, match="cannot be read"):
        read_broker_conf(tmp_path)


@pytest.mark.parametrize("line", ["futureKey=", "futureKey", "futureKey =  ", "futureKey:"])
def test_an_unknown_key_without_a_value_is_reported(line: str, tmp_path: Path) -> None:
    """As one with a value: Apache's broker ignores both."""
    path = tmp_path / "broker.conf"
    path.write_text(f"{line}\nbrokerName=b1\n")
    conf = read_broker_conf(path)
    assert conf.values["broker"] == {"broker_name": "b1"}
    assert conf.notes == ("futureKey has no effect here",)


NUMBERS = ("0", "-1", "-2147483648", "2147483647", "9223372036854775807", "-" + "9" * 400, "9" * 4_299)


@pytest.mark.slow
def test_every_number_of_a_broker_conf_is_taken_or_refused_by_its_key(tmp_path: Path) -> None:
    """Also those that Apache takes; a topic never gets more queues than the next start accepts."""
    path = tmp_path / "broker.conf"
    path.touch(0o600)
    taken, unnamed = set(), []
    for key, (table, one) in conf_settings().items():
        for text in NUMBERS:
            path.write_text(f"{key}={text}\n")
            try:
                conf = read_broker_conf(path)
                Config().room(table, Layer("broker.conf", conf.values[table]))
                taken.add((key, text))
            except UsageError as error:
                if key not in str(error) and one.name not in str(error):
                    unnamed.append((key, text, str(error)))
    assert not unnamed
    assert {("maxTransferCountOnMessageInMemory", "2147483647"), ("startAcceptSendRequestTimeStamp", "-1")} <= taken
    assert not {("defaultTopicQueueNums", "2147483647"), ("serverChannelMaxIdleTimeSeconds", "0")} & taken
    assert not {("registerNameServerPeriod", "0"), ("haListenPort", "-1"), ("listenPort", "2147483647")} & taken


@pytest.mark.parametrize(
    ("data", "found"),
    [
        (b"\xef\xbb\xbfbrokerName=b1", "b1"),  # as Windows' editors write UTF-8
        ("brokerName=b1".encode("utf-16"), "expected a file of UTF-8 text"),
        ("# \u4e2d\u6587".encode("gbk"), "expected a file of UTF-8 text"),
        (bytes(1_000), "expected key=value"),
        (b"x" * 100_000, "expected key=value"),
        (b"listenPort=" + b"9" * 100_000, "expected a number"),
    ],
)
def test_a_broker_conf_of_another_encoding(tmp_path: Path, data: bytes, found: str) -> None:
    """A byte order mark does not hide the first key; what cannot be read is an error of one short line."""
    path = tmp_path / "broker.conf"
    path.write_bytes(data)
    if found == "b1":
        assert read_broker_conf(path).values["broker"] == {"broker_name": "b1"}
        return
    with pytest.raises(UsageError, match=found) as caught:
        read_broker_conf(path)
    assert len(str(caught.value)) < 1_000


@pytest.mark.parametrize(
    "text", ["a = " + "[" * 5_000, "a = " + "{b = " * 3_000, "a = " + "9" * 5_000, "\x00", "a = 1\na = 2"]
)
def test_a_settings_file_that_cannot_be_read_is_an_error_in_words(tmp_path: Path, text: str) -> None:
    """This includes nesting and numbers that the TOML reader cannot handle."""
    path = tmp_path / "mqtrail.toml"
    path.write_text(text)
    with pytest.raises(UsageError, match="is not TOML"):
        load(path, {})


def test_a_settings_file_may_have_a_byte_order_mark(tmp_path: Path) -> None:
    """Windows' editors write UTF-8 with a byte order mark."""
    path = tmp_path / "mqtrail.toml"
    path.write_bytes(b"\xef\xbb\xbfnamesrv = 'h:1'")
    assert load(path, {}).namesrv(None) == "h:1"


def test_a_wrong_address_of_any_length_is_a_short_error() -> None:
    """The error quotes its beginning."""
    with pytest.raises(UsageError, match="expected host:port") as caught:
        namesrv_addresses("x" * 1_000_000)
    assert len(str(caught.value)) < 1_000


DISTRIBUTED = """
brokerClusterName = DefaultCluster
brokerName = broker-a
brokerId = 0
deleteWhen = 04
fileReservedTime = 48
brokerRole = ASYNC_MASTER
flushDiskType = ASYNC_FLUSH
"""  # conf/broker.conf of every release


def test_apaches_own_broker_conf_says_nothing_strange(tmp_path: Path) -> None:
    """The broker.conf of Apache's distribution is accepted without a note."""
    path = tmp_path / "broker.conf"
    path.write_text(DISTRIBUTED)
    assert read_broker_conf(path).notes == ()


def test_access_and_tls_of_a_broker_conf(tmp_path: Path) -> None:
    """Keys of ACL, users, TLS and metrics have an effect; others are reported with a remedy or a similar key."""
    path = tmp_path / "broker.conf"
    path.write_text(
        "aclEnable=true\nauthenticationEnabled:true\nauthorizationEnabled true\n"
        'initAuthenticationUser={"username":"root",\\\n   "password":"sesame"}\n'
        "authenticationWhitelist=34,105\nmigrateAuthFromV1Enabled=true\ntls.server.mode=permissive\n"
        "tls.server.certPath=/s.pem\ntls.server.keyPath=/s.key\ntls.test.mode.enable=true\nrocketmqHome=/opt/mq\n"
        "metricsPromExporterPort=5557\nmetricsExporterType=PROM\nbindAddress=0.0.0.0\n"
        "serverChannelMaxIdleTimeSeconds=60\nstorePathRootDir=/store\nstoreType=other\nlistenPorts=1\n"
    )
    conf = read_broker_conf(path)
    assert conf.values["broker"] == {
        "acl": True,
        "authentication": True,
        "authorization": True,
        "init_user": '{"username":"root","password":"sesame"}',
        "authentication_whitelist": "34,105",
        "migrate_acl": True,
    }
    assert conf.values["tls_server"] == {"mode": "permissive", "cert_path": "/s.pem", "key_path": "/s.key"}
    assert conf.values["node"] == {"acl_home": "/opt/mq", "metrics_port": 5557, "host": "0.0.0.0"}
    assert conf.values["server"] == {"idle_timeout_ms": 60_000}
    assert [note.partition(" ")[0] for note in conf.notes] == [
        "storePathRootDir",
        "storeType=other",
        "listenPorts",
        "tls.test.mode.enable=true",
    ]
    assert "--data" in conf.notes[0]
    assert "did you mean listenPort?" in conf.notes[2]


def test_a_member_of_a_dledger_group(tmp_path: Path) -> None:
    """Its keys are read; a log in another folder is refused, since the member would start without it."""
    path = tmp_path / "broker.conf"
    text = (
        "enableDLegerCommitLog=true\ndLegerGroup=g\ndLegerPeers=n0-h:1;n1-h:2;n2-h:3\ndLegerSelfId=n1\n"
        "preferredLeaderId=n0\n"
    )
    path.write_text(text)
    conf = read_broker_conf(path)
    assert conf.values["broker"] == {
        "ledger_mode": True,
        "ledger_group": "g",
        "ledger_peers": "n0-h:1;n1-h:2;n2-h:3",
        "ledger_self_id": "n1",
        "ledger_preferred": "n0",
    }
    assert conf.notes == ()
    path.write_text(text + "storePathDLedgerCommitLog=/log\n")
    with pytest.raises(UsageError, match="expected the log in the broker's folder"):
        read_broker_conf(path)
    path.write_text("storePathDLedgerCommitLog=/log\n")
    assert "--data" in read_broker_conf(path).notes[0]


def test_credentials_and_tls_of_clients(tmp_path: Path) -> None:
    """A client's config has [credentials], overridden by the environment, and [tls] over a tls.properties."""
    (tmp_path / "tls.properties").write_text("tls.enable=true\ntls.client.trustCertPath=/ca.pem\n")
    text = (
        f'tls_config = "{tmp_path}/tls.properties"\n[credentials]\naccess_key = "ak"\nsecret_key = "sesame"\n'
        "[tls]\nverify = false\n"
    )
    config = read(tmp_path, text)
    client = config.room("client")
    assert client.credentials == Credentials(access_key="ak", secret_key="sesame")
    assert client.tls == TlsClientConfig(enable=True, verify=False, trust_path=Path("/ca.pem"))
    assert config.client("producer").instance == client
    assert "sesame" not in repr(config) + repr(client)
    environment = {"MQTRAIL_ACCESS_KEY": "other", "MQTRAIL_SECRET_KEY": "secret", "MQTRAIL_SECURITY_TOKEN": "t"}
    outweighed = load(config.path, environment).room("client")
    assert outweighed.credentials == Credentials(access_key="other", secret_key="secret", security_token="t")
    assert read(tmp_path, "").room("client").credentials is None
    with pytest.raises(UsageError, match="access_key without secret_key"):
        read(tmp_path, '[credentials]\naccess_key = "ak"\n').room("client")
    with pytest.raises(UsageError, match=r"tls\.properties .* cannot be read"):
        read(tmp_path, 'tls_config = "/nowhere.properties"\n').room("client")


def test_moments() -> None:
    """A time is a date, epoch ms or an age."""
    now = 1_800_000_000_000
    assert moment_ms("2h", now, "--from") == now - 7_200_000
    assert moment_ms("1700000000000", now, "--from") == 1_700_000_000_000
    assert moment_ms("2026-11-21T00:00", now, "--from") == moment_ms("2026-11-21", now, "--from")
    assert moment_ms("2026-11-21T01:00+01:00", now, "--from") == moment_ms("2026-11-21", now, "--from")
    assert duration_ms("30s", "--interval") == 30_000
    for wrong in ("yesterday", "5y", "h", ""):
        with pytest.raises(UsageError, match="--from: found"):
            moment_ms(wrong, now, "--from")
        with pytest.raises(UsageError, match="--interval: found"):
            duration_ms(wrong, "--interval")


def test_name_servers_by_an_end_point(tmp_path: Path) -> None:
    """A URL with a path returns the name servers; with a domain in the settings no address is needed."""
    assert load(None, {"NAMESRV_ADDR": "http://ns.local/rocketmq/nsaddr"}).namesrv(None).endswith("/nsaddr")
    file = tmp_path / "m.toml"
    file.write_text('[client]\nnamesrv_domain = "jmenv.tbsite.net"\n')
    assert load(file, {}).namesrv(None) == ""
    assert load(file, {}).namesrv("10.0.0.5:9876") == "10.0.0.5:9876"
    with pytest.raises(UsageError, match="host:port"):
        load(None, {"NAMESRV_ADDR": "http://ns.local"}).namesrv(None)


SECRET_FILES = {
    "mqtrail.toml": '[broker]\ninit_user = "sesame"\n',
    "credentials.toml": '[credentials]\naccess_key = "a"\nsecret_key = "sesame"\n',
    "broker.conf": "innerClientAuthenticationCredentials=sesame\n",
}


@pytest.mark.parametrize("name", SECRET_FILES)
def test_files_with_secrets_that_others_can_read_are_warned_of(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The warning has a remedy. A file for its owner only, or without a secret, gets no warning."""
    path = tmp_path / name
    read = read_broker_conf if name.endswith(".conf") else load

    def warnings_of(mode: int, text: str) -> str:
        path.write_text(text)
        path.chmod(mode)
        read(path)
        return capsys.readouterr().err

    assert f"chmod 600 {path}" in warnings_of(0o644, SECRET_FILES[name])
    assert warnings_of(0o600, SECRET_FILES[name]) == ""
    assert warnings_of(0o640, SECRET_FILES[name]) == ""
    assert warnings_of(0o644, "" if name.endswith(".conf") else 'namesrv = "10.0.0.5:9876"') == ""


@pytest.mark.parametrize(
    "text",
    [
        'credentials = "sesame"',
        '[credentials]\naccess_key = "a"\nsecret_key = ["sesame"]',
        '[broker]\ninner_credentials = { password = "sesame" }',
        '[broker]\ninit_user = "sesame\n',
    ],
)
def test_errors_of_a_settings_file_show_no_secret(text: str, tmp_path: Path) -> None:
    """The error shows only the type of the found value."""
    path = tmp_path / "mqtrail.toml"
    path.write_text(text)
    path.chmod(0o600)

    def use() -> None:
        config = load(path)
        config.credentials()
        config.room("broker")

    with pytest.raises(UsageError) as error:
        use()
    assert "sesame" not in str(error.value)
