"""`mqtrail up`: a name server and brokers, until a signal."""

from __future__ import annotations

import dataclasses
import sys
import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mqtrail.wire import settings_of

from .config import (
    SECRETS,
    Config,
    Layer,
    assignments,
    config_class,
    has_password,
    load,
    namesrv_addresses,
    warn_if_open_to_others,
)
from .exits import UsageError
from .imports import collector_paused
from .options import ConfigFile, Json
from .output import say, show_json, warn

if TYPE_CHECKING:
    from mqtrail.node import AnyNode, GroupConfig, NodeConfig

TABLES = ("broker", "store", "node", "server", "tls_server", "namesrv_server")
DURABILITY = {
    False: "ASYNC_FLUSH: acknowledged messages survive kill -9 but not a power failure (--flush sync: both)",
    True: "SYNC_FLUSH: acknowledged messages survive kill -9 and a power failure",
}

DataFolder = Annotated[
    Path | None, typer.Option(readable=False, help="Data folder. [env: MQTRAIL_DATA, default: ./mqtrail-data]")
]
ListenHost = Annotated[str | None, typer.Option(help="IP address to listen on. [default: 127.0.0.1]")]
AdvertisedHost = Annotated[
    str | None, typer.Option(help="IP address advertised to clients (brokerIP1). [default: --host]")
]
NamesrvPort = Annotated[
    int | None, typer.Option(min=0, max=65_535, help="Name server port; 0: any free port. [default: 9876]")
]
BrokerPort = Annotated[
    int | None,
    typer.Option(
        min=0, max=65_535, help="Port of the first broker, +10 for each next one; 0: any free. [default: 10911]"
    ),
]
BrokerCount = Annotated[int, typer.Option(min=1, max=64, help="Number of brokers to run.")]
BrokerName = Annotated[
    str | None,
    typer.Option(help="Broker name; several brokers are NAME-1, NAME-2, … [default: broker-a, broker-b, …]"),
]
JoinedNamesrvs = Annotated[
    str | None,
    typer.Option(metavar="HOST:PORT[;…]", help="Run no name server; register the brokers with these ones."),
]
FlushMode = Annotated[
    str | None,
    typer.Option(
        metavar="async|sync",
        help="When to acknowledge a send: before (async) or after (sync) the flush. [default: async]",
    ),
]
SegmentSize = Annotated[
    str | None, typer.Option(metavar="BYTES", help="Size of one CommitLog file, for example 64MiB. [default: 1GiB]")
]
StoreUrl = Annotated[
    str | None,
    typer.Option(
        metavar="URL",
        help="Keep messages in tables of a database, for example sqlite:///path/to/file.db or "
        "postgresql://user@host/database. [env: MQTRAIL_STORE_URL, default: a CommitLog]",
    ),
]
StoreNodes = Annotated[
    list[str] | None,
    typer.Option(
        "--node",
        metavar="NAME=URL",
        help="Further database for queues; repeat it for each. [env: MQTRAIL_STORE_NODES, default: none]",
    ),
]
StoreReplicas = Annotated[
    list[str] | None,
    typer.Option(
        "--replica",
        metavar="NAME=URL",
        help="Replica of a database, from which messages are read too; NAME is home, or a node's; repeat it for each. "
        "[env: MQTRAIL_STORE_REPLICAS, default: none]",
    ),
]
SkipDamaged = Annotated[
    bool | None,
    typer.Option(
        "--skip-damaged",
        help="Start despite damage inside the CommitLog. The damaged messages are lost; their bytes are kept.",
        show_default=False,
    ),
]
BrokerTrace = Annotated[
    bool | None,
    typer.Option(
        "--broker-trace/--no-broker-trace",
        help="Record what the broker stores and delivers in the trace. [default: off]",
    ),
]
TraceTopic = Annotated[
    bool | None, typer.Option("--trace-topic/--no-trace-topic", help="Create the trace topic. [default: on]")
]
Assignments = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="[TABLE.]FIELD=VALUE", help="Set any setting (table defaults to broker); repeatable."
    ),
]
AssignedFiles = Annotated[
    list[str] | None,
    typer.Option(
        "--set-file",
        metavar="[TABLE.]FIELD=FILE",
        help="Read a setting, for example a secret, from a file ('-': stdin); repeatable.",
    ),
]
BrokerConf = Annotated[
    Path | None,
    typer.Option(
        "--broker-conf",
        "--conf",
        readable=False,
        help="RocketMQ broker.conf to read; keys without effect are reported.",
    ),
]
TlsConfig = Annotated[
    Path | None,
    typer.Option(readable=False, help="RocketMQ tls.properties to read. [env: MQTRAIL_TLS_CONFIG, default: no TLS]"),
]
TlsKind = Annotated[
    str | None,
    typer.Option(
        metavar="self-signed",
        help="Accept TLS with a self-signed certificate that the node creates. [default: no TLS]",
    ),
]
GroupSize = Annotated[
    int | None,
    typer.Option(
        "--ha",
        metavar="N",
        min=2,
        max=9,
        help="Run a group of N brokers that copy one log: another takes over when the master dies.",
    ),
]
GroupModeName = Annotated[
    str | None,
    typer.Option(
        "--mode", metavar="controller|dledger|classic", help="Replication mode of --ha. [default: controller]"
    ),
]
ControllerPort = Annotated[
    int | None,
    typer.Option(
        min=0,
        max=65_535,
        help="Port of the first controller of --ha, +1 for each next one; 0: any free. [default: 9878]",
    ),
]
MetricsPort = Annotated[
    int | None,
    typer.Option(min=0, max=65_535, help="Port of the Prometheus metrics, +1 for each next broker; 0: any free."),
]


def up(
    data: DataFolder = None,
    host: ListenHost = None,
    advertise: AdvertisedHost = None,
    namesrv_port: NamesrvPort = None,
    broker_port: BrokerPort = None,
    brokers: BrokerCount = 1,
    ha: GroupSize = None,
    mode: GroupModeName = None,
    controller_port: ControllerPort = None,
    broker_name: BrokerName = None,
    join: JoinedNamesrvs = None,
    flush: FlushMode = None,
    segment_size: SegmentSize = None,
    store: StoreUrl = None,
    store_nodes: StoreNodes = None,
    store_replicas: StoreReplicas = None,
    skip_damaged: SkipDamaged = None,
    broker_trace: BrokerTrace = None,
    trace_topic: TraceTopic = None,
    assign: Assignments = None,
    assign_files: AssignedFiles = None,
    conf: BrokerConf = None,
    tls_config: TlsConfig = None,
    tls: TlsKind = None,
    metrics_port: MetricsPort = None,
    config: ConfigFile = None,
    json: Json = False,
) -> int:
    """Run a name server and brokers until SIGINT or SIGTERM."""
    began_s = time.monotonic()
    with collector_paused():
        from mqtrail.node import run_up
    settings = load(config)
    flags: dict[str, dict[str, object]] = {
        "broker": {
            "sync_flush": _sync_flush(flush, store),
            "broker_trace": broker_trace,
            "trace_topic_enable": trace_topic,
        },
        "store": {"segment_size": segment_size, "skip_damaged": skip_damaged},
        "node": {
            "host": host,
            "advertise": advertise,
            "namesrv_port": namesrv_port,
            "broker_port": broker_port,
            "metrics_port": metrics_port,
            "store_url": store,
            "store_nodes": " ".join(store_nodes) if store_nodes else None,
            "store_replicas": " ".join(store_replicas) if store_replicas else None,
        },
        "tls_server": {"self_signed": _self_signed(tls)},
    }
    layers = _all_layers(conf, assign or [], assign_files or [], flags)
    names = broker_names(_name_of(broker_name, brokers, layers), brokers)
    group = _group(ha, mode, controller_port, brokers, settings)
    node_config = _node_config(settings, layers, data, names, join, tls_config, group)
    return run_up(node_config, on_ready=partial(_show_ready, json=json, began_s=began_s))


def _show_ready(node: AnyNode, *, json: bool, began_s: float) -> None:
    if json:
        show_json(_ready_json(node))
    else:
        _ready_text(node, time.monotonic() - began_s)


def _group(
    size: int | None, mode: str | None, controller_port: int | None, brokers: int, settings: Config
) -> GroupConfig | None:
    """Return the group of --ha; None without it. UsageError."""
    from mqtrail.node import GroupConfig, GroupMode

    if size is None:
        for flag, value in (("--mode", mode), ("--controller-port", controller_port)):
            if value is not None:
                raise UsageError(f"found {flag} without --ha, expected both: pass --ha N, the number of brokers")
        return None
    if brokers > 1:
        raise UsageError(
            f"found --ha with --brokers {brokers}, expected one of them: --ha N runs N brokers of one group"
        )
    names = [one.value for one in GroupMode]
    if mode is not None and mode not in names:
        raise UsageError(f"--mode: found {mode!r}, expected {' or '.join(names)}")
    found = GroupConfig(size=size, controller=settings.room("controller"))
    if mode is not None:
        found = dataclasses.replace(found, mode=GroupMode(mode))
    return found if controller_port is None else dataclasses.replace(found, controller_port=controller_port)


def _sync_flush(flush: str | None, store: str | None) -> bool | None:
    if flush not in (None, "async", "sync"):
        raise UsageError(f"--flush: found {flush!r}, expected async or sync")
    if store and has_password(store):
        warn(
            "found a password in a URL on the command line, which other users can read there; set it by the variable "
            "MQTRAIL_STORE_URL"
        )
    if store and flush == "async":
        raise UsageError("--flush: found async with --store, expected sync: a send is acknowledged after its commit")
    return None if flush is None else flush == "sync"


def _self_signed(tls: str | None) -> bool | None:
    if tls not in (None, "self-signed"):
        raise UsageError(f"--tls: found {tls!r}, expected self-signed; to use your own certificate, set [tls_server]")
    return None if tls is None else True


def _name_of(broker_name: str | None, count: int, layers: Sequence[Mapping[str, Layer]]) -> str | None:
    """Return the base name of several brokers: --broker-name, else the name in a broker.conf."""
    if count == 1 or broker_name is not None:
        return broker_name
    found = next((layer["broker"].values.get("broker_name") for layer in layers if "broker" in layer), None)
    return None if found is None else str(found)


def broker_names(name: str | None, count: int) -> tuple[str, ...] | None:
    """Return the names of `count` brokers; None: take them from the settings."""
    if count == 1:
        return None if name is None else (name,)
    if name is None:
        letters = "abcdefghijklmnopqrstuvwxyz"
        return tuple(f"broker-{letters[n] if n < len(letters) else n + 1}" for n in range(count))
    return tuple(f"{name}-{number}" for number in range(1, count + 1))


def _given(where: str, values: Mapping[str, object]) -> Layer:
    return Layer(where, {name: value for name, value in values.items() if value is not None})


def _all_layers(
    conf: Path | None, assign: Sequence[str], assign_files: Sequence[str], flags: Mapping[str, Mapping[str, object]]
) -> list[dict[str, Layer]]:
    """Return what the command line names, the strongest last."""
    return [
        *_conf_layers(conf),
        *_set_layers(assign),
        *_set_file_layers(assign_files),
        {table: _given("flag", values) for table, values in flags.items()},
    ]


def _conf_layers(conf: Path | None) -> list[dict[str, Layer]]:
    if conf is None:
        return []
    from .broker_conf import read_broker_conf

    found = read_broker_conf(conf)
    for note in found.notes:
        warn(f"{conf}: {note}")
    return [{table: Layer(str(conf), values) for table, values in found.values.items()}]


def _set_layers(texts: Sequence[str]) -> list[dict[str, Layer]]:
    values = _tables(assignments(texts, "--set"), "--set")
    for table, field in values:
        if (known := settings_of(config_class(table)).get(field)) is not None and known.secret:
            variable = SECRETS.get((table, field))
            raise UsageError(
                f"--set {table}.{field}: found a secret on the command line, which other users can read; "
                f"pass --set-file {table}.{field}=FILE ('-' reads standard input), "
                + (f"the environment variable {variable}, " if variable else "")
                + f"or {field} in [{table}] of a settings file"
            )
    return _layers(values, "--set")


def _set_file_layers(texts: Sequence[str]) -> list[dict[str, Layer]]:
    values = _tables(assignments(texts, "--set-file"), "--set-file")
    return _layers({key: _content(str(name)) for key, name in values.items()}, "--set-file")


def _content(name: str) -> str:
    """Return the text of a file, or of stdin for "-", without the final line break. UsageError."""
    if name == "-":
        return sys.stdin.read().removesuffix("\n")
    path = Path(name).expanduser()
    try:
        text = path.read_text("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(
            f"--set-file: {path} cannot be read: {error}: check its path and permissions, and that it is UTF-8 text"
        ) from error
    warn_if_open_to_others(path)
    return text.removesuffix("\n")


def _tables(values: Mapping[str, object], flag: str) -> dict[tuple[str, str], object]:
    """Convert [TABLE.]FIELD -> value to (table, field) -> value. UsageError."""
    found: dict[tuple[str, str], object] = {}
    for name, value in values.items():
        table, dot, field = name.rpartition(".")
        table = table if dot else "broker"
        if table not in TABLES:
            raise UsageError(f"{flag} {name}: found table {table!r}, expected one of {', '.join(TABLES)}")
        found[table, field] = value
    return found


def _layers(values: Mapping[tuple[str, str], object], flag: str) -> list[dict[str, Layer]]:
    tables: dict[str, dict[str, object]] = {}
    for (table, field), value in values.items():
        tables.setdefault(table, {})[field] = value
    return [{table: Layer(flag, found) for table, found in tables.items()}]


def _node_config(
    settings: Config,
    layers: Sequence[Mapping[str, Layer]],
    data: Path | None,
    names: tuple[str, ...] | None,
    join: str | None,
    tls_config: Path | None,
    group: GroupConfig | None,
) -> NodeConfig:
    """Return the node's settings, combined from the file, the environment and the flags. UsageError."""
    ours = Layer("default", {"trace_topic_enable": True, "property_filter": True, "all_in_sync": group is not None})
    layers_of = {table: [layer[table] for layer in layers if table in layer] for table in TABLES}
    rooms = {
        table: settings.room(table, *layers_of[table], below=ours if table == "broker" else None)
        for table in TABLES
        if table != "tls_server"
    }
    node: NodeConfig = rooms["node"]
    if names is None:
        # The settings file may list several names. A single name may also come from brokerName in a broker.conf.
        names = node.broker_names if len(node.broker_names) > 1 else (_one_name(node, rooms["broker"].broker_name),)
    found = dataclasses.replace(
        node,
        data=settings.data(data),
        broker_names=names,
        group=group,
        broker=rooms["broker"],
        store=rooms["store"],
        server=dataclasses.replace(
            rooms["server"], tls=settings.tls("server", *layers_of["tls_server"], file=tls_config)
        ),
        tls=settings.tls("client", file=tls_config),
        namesrv=rooms["namesrv_server"],
    )
    if join:
        return dataclasses.replace(found, namesrv_port=None, namesrv_addresses=namesrv_addresses(join))
    return found


def _one_name(node: NodeConfig, broker_name: str) -> str:
    default = type(node)().broker_names[0]
    return broker_name if node.broker_names == (default,) else node.broker_names[0]


def _shown_store(config: NodeConfig) -> str:
    from mqtrail.node import shown_url

    return shown_url(config.store_url)


def _ready_json(node: AnyNode) -> dict[str, object]:
    config = node.config
    return {
        "event": "ready",
        "namesrv": node.namesrv_address,
        "brokers": {name: report.address for name, report in node.reports.items()},
        "data": None if config.data is None else str(config.data.absolute()),
        "store": _shown_store(config) or "CommitLog",
        "flush": "SYNC_FLUSH" if config.broker.sync_flush else "ASYNC_FLUSH",
        "recovery": {name: report.figures for name, report in node.reports.items() if report.figures},
        "open_to_others": node.is_open_to_others,
        "certificate": None if node.certificate is None else str(node.certificate),
        "metrics": {name: report.metrics for name, report in node.reports.items() if report.metrics},
        "controllers": list(node.controller_addresses),
        "processes": node.process_ids,
        "http": node.http_url or None,
    }


def _ready_text(node: AnyNode, took_s: float) -> None:
    from mqtrail.node import shown_url

    config = node.config
    lines = [f"mqtrail is ready after {took_s:.2f} s; press Ctrl-C to stop"]
    lines.append(f"  name server  {node.namesrv_address}{' (joined)' if config.namesrv_port is None else ''}")
    lines += [f"  controller   {address}" for address in node.controller_addresses]
    processes = node.process_ids
    for name, report in node.reports.items():
        process = f", process {processes[name]}" if name in processes else ""
        lines.append(f"  broker       {report.address}  {name}{process}")
        if report.recovery:
            lines.append(f"               {report.recovery}")
        if report.metrics:
            lines.append(f"               metrics at {report.metrics}")
    if node.http_url:
        lines.append(f"  HTTP door    {node.http_url}/v1, described at /openapi.json")
    lines.append(f"  data         {config.data}")
    if config.store_url:
        lines.append(f"  messages     {_shown_store(config)}")
        lines += [f"               {shown_url(node_of_store)}" for node_of_store in config.store_nodes.split()]
        lines += [f"               replica of {shown_url(replica)}" for replica in config.store_replicas.split()]
    lines.append(f"  flush        {DURABILITY[config.broker.sync_flush]}")
    trace = f"topic {config.broker.trace_topic}" if config.broker.trace_topic_enable else "no topic is created"
    lines.append(
        f"  trace        {trace}; the broker's own records are {'on' if config.broker.broker_trace else 'off'}"
    )
    for line in lines:
        say(line)
    for text in _guards(node):
        say(f"  access       {text}")
    if config.server.tls.lets_plain_pass:
        warn(
            "client certificates are required, but connections without TLS need none. To refuse those, set mode = "
            '"ENFORCING" in [tls_server] (docs/how-to/tls.md)'
        )
    servers = node.open_servers
    if servers == ["controllers"]:
        warn(
            f"{config.host} accepts connections from other machines, and the controllers do not authenticate them: "
            "anyone who reaches them can change masters. Listen on --host 127.0.0.1, or set inner_credentials in "
            "[broker] (docs/how-to/controller.md)"
        )
    elif servers == ["name server"]:
        warn(
            f"{config.host} accepts connections from other machines, and the name server does not authenticate them: "
            "anyone who reaches it can register brokers and change or delete routes. Listen on --host 127.0.0.1, or "
            "remove acl = false from [namesrv_server] (docs/how-to/acl.md)"
        )
    elif servers:
        warn(
            f"{config.host} accepts connections from other machines without authentication: anyone who reaches these "
            "ports can read and write every message. Listen on --host 127.0.0.1, or enable access control: --set "
            "acl=true with accounts in conf/plain_acl.yml, or users (docs/how-to/acl.md)"
        )


def _guards(node: AnyNode) -> list[str]:
    """Return a line for each active access control."""
    config = node.config
    broker, tls = config.broker, config.server.tls
    found = []
    if broker.acl:
        found.append("accounts in ACL files")
    if broker.authentication or broker.authorization:
        names = [
            name
            for name, on in (("authentication", broker.authentication), ("authorization", broker.authorization))
            if on
        ]
        found.append(f"users and policies ({', '.join(names)})")
    if config.namesrv_port is not None and config.namesrv.acl:
        routes = "known accounts" if config.namesrv.protect_routes else "everyone"
        found.append(f"name server: only signed changes by brokers and administrators; {routes} may read routes")
    if tls.on:
        plain = "; connections without TLS need no certificate" if tls.lets_plain_pass else ""
        found.append(f"TLS, {tls.mode.name.lower()}, client certificates: {tls.client_auth.name.lower()}{plain}")
    if node.certificate is not None:
        found.append(f"self-signed certificate, to be trusted by clients: {node.certificate}")
    return found
