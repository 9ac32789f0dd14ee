"""`cluster`: brokers and name servers, their settings, counters and maintenance."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .config import assignments, load
from .exits import Exit, UsageError
from .operate import (
    Broker,
    Cluster,
    Yes,
    admin_of,
    confirm_change,
    failures_of,
    report_answer,
    report_change,
    table,
    warn_failures,
)
from .options import ConfigFile, Json, Namesrv
from .output import progress, show_json

if TYPE_CHECKING:
    from mqtrail.client import SyncAdmin
    from mqtrail.wire import GroupOffsets

HIDDEN = "(hidden)"

BrokerName = Annotated[str, typer.Argument(metavar="BROKER", help="Broker name.")]


def cluster_list(
    cluster: Cluster = None, namesrv: Namesrv = None, config: ConfigFile = None, json: Json = False
) -> int:
    """List clusters and brokers with versions and message rates."""
    with admin_of(load(config), namesrv) as admin, progress("querying the brokers", enabled=not json):
        found = admin.brokers(cluster)
    rows = [
        {
            "cluster": one.cluster,
            "broker": one.name,
            "id": one.broker_id,
            "address": one.address,
            "version": one.version,
            "in_tps": _rate(one.runtime or {}, "putTps"),
            "out_tps": _rate(one.runtime or {}, "getTransferredTps" if one.runtime else ""),
        }
        for one in found
    ]
    failures = {one.address: str(one.error) for one in found if one.error is not None}
    if not json:
        headings = ("cluster", "broker", "id", "address", "version", "in/s", "out/s")
        table(headings, [list(row.values()) for row in rows])
    code = report_answer({"brokers": rows}, failures, json)
    return code if code != Exit.OK or rows else Exit.FAILED


def _rate(runtime: dict[str, str] | object, key: str) -> float | None:
    """Return the first of a broker's "10s 60s 600s" rates."""
    text = runtime.get(key, "") if isinstance(runtime, dict) else ""
    try:
        return round(float(text.split()[0]), 1) if text else None
    except (ValueError, IndexError):
        return None


def cluster_show(
    broker: Annotated[str, typer.Argument(help="Broker name, or host:port.")],
    namesrv: Namesrv = None,
    config: ConfigFile = None,
    json: Json = False,
) -> int:
    """Show the runtime counters of a broker: rates, files, thread queues, lag."""
    with admin_of(load(config), namesrv) as admin:
        (address,) = admin.targets(None, broker).values()
        runtime = admin.runtime_info(address)
    if json:
        show_json({"broker": broker, "address": address, "runtime": runtime})
    else:
        table(("counter", "value"), sorted(runtime.items()), f"{broker} ({address})")
    return Exit.OK


def cluster_config(
    setting: Annotated[
        list[str] | None, typer.Argument(help="NAME… to show, or NAME=VALUE… to set; omitted: show all.")
    ] = None,
    cluster: Cluster = None,
    broker: Broker = None,
    yes: Yes = False,
    namesrv: Namesrv = None,
    config: ConfigFile = None,
    json: Json = False,
) -> int:
    """Show or change the settings of running brokers."""
    names, values = _parted(setting or [])
    with admin_of(load(config), namesrv) as admin:
        if values:
            confirm_change(f"change {', '.join(values)} of running brokers", yes)
            done = admin.set_broker_config(values, cluster=cluster, broker=broker)
            text = ", ".join(f"{name}={value}" for name, value in values.items())
            return report_change(done, text, "did not change its settings", json, settings=values)
        failures: dict[str, str] = {}
        found: dict[str, dict[str, str | None]] = {}
        for name, address in admin.targets(cluster, broker).items():
            known = admin.broker_config(address)
            found[name] = {one: _shown(one, known.get(one)) for one in names or known}
    if not json:
        for name, shown in found.items():
            table(("setting", "value"), sorted(shown.items()), name)
    return report_answer({"brokers": found}, failures, json)


def _shown(name: str, value: str | None) -> str | None:
    """Return a setting for printing. Secrets are hidden: brokers of RocketMQ 5.3 return them in plain text."""
    from mqtrail.answers.changes import is_secret_setting

    return HIDDEN if value and is_secret_setting(name) else value


def _parted(texts: list[str]) -> tuple[list[str], dict[str, str]]:
    from mqtrail.answers.changes import is_secret_setting

    values = {name: str(value) for name, value in assignments([one for one in texts if "=" in one], "setting").items()}
    names = [one for one in texts if "=" not in one]
    for name in filter(is_secret_setting, values):
        raise UsageError(
            f"{name}: found a secret on the command line, which other users of this machine can read; set it in the "
            "configuration file of the broker and restart the broker"
        )
    if names and values:
        raise UsageError(f"found {names[0]!r} together with NAME=VALUE, expected either NAME… or NAME=VALUE…")
    return names, values


def cluster_stats(
    broker: Annotated[str, typer.Argument(help="Broker name, or host:port.")],
    name: Annotated[
        str, typer.Argument(help="Statistic, for example TOPIC_PUT_NUMS, GROUP_GET_NUMS or SNDBCK_PUT_NUMS.")
    ],
    key: Annotated[str, typer.Argument(help="Topic, or TOPIC@GROUP.")],
    namesrv: Namesrv = None,
    config: ConfigFile = None,
    json: Json = False,
) -> int:
    """Show a statistic of a broker for the last minute, hour and day."""
    with admin_of(load(config), namesrv) as admin:
        (address,) = admin.targets(None, broker).values()
        found = admin.broker_stats(address, name, key)
    spans = {"minute": found.stats_minute, "hour": found.stats_hour, "day": found.stats_day}
    if json:
        show_json({span: item.members() for span, item in spans.items()})
    else:
        table(
            ("last", "sum", "per second", "average"),
            [(span, item.sum, round(item.tps, 2), round(item.avgpt, 2)) for span, item in spans.items()],
            f"{name} {key}",
        )
    return Exit.OK


def cluster_export(
    namespaces: Annotated[
        list[str] | None,
        typer.Option(
            "--kv-namespace",
            metavar="NAMESPACE",
            help="Also export this namespace of the name servers, which list no namespaces; repeatable.",
        ),
    ] = None,
    cluster: Cluster = None,
    broker: Broker = None,
    namesrv: Namesrv = None,
    config: ConfigFile = None,
) -> int:
    """Print the configuration of brokers and name servers as JSON, which `cluster import` reads.

    It has topics, groups, settings, offsets, access control, and the name servers' orders of topics.
    """
    from mqtrail.wire import ORDER_TOPIC_CONFIG

    with admin_of(load(config), namesrv) as admin, progress("querying the brokers"):
        found = admin.export(cluster=cluster, broker=broker)
        access = {name: _access(admin, name) | _accounts(admin, name) for name in found.found}
        values = {name: admin.kv_list(name) for name in sorted({ORDER_TOPIC_CONFIG, *(namespaces or ())})}
    value = {
        name: {
            "topics": [one.members() for _, one in sorted(made.topics.items())],
            "groups": [one.members() for _, one in sorted(made.groups.items())],
            "settings": {key: _shown(key, made.settings[key]) for key in sorted(made.settings)},
            "offsets": _by_group(made.offsets),
            **access[name],
        }
        for name, made in sorted(found.found.items())
    }
    return report_answer({"version": 1, "brokers": value, "key_values": values}, failures_of(found), True)


def _by_group(offsets: Iterable[GroupOffsets]) -> dict[str, dict[str, dict[str, int]]]:
    """Return the offsets by group, topic and number of the queue."""
    found: dict[str, dict[str, dict[str, int]]] = {}
    for one in sorted(offsets, key=lambda one: (one.group, one.topic)):
        found.setdefault(one.group, {})[one.topic] = {str(at): offset for at, offset in sorted(one.queues.items())}
    return found


def _access(admin: SyncAdmin, broker: str) -> dict[str, Any]:
    """Return users, without passwords, and policies of a broker; both None, and why, if it does not list them."""
    from mqtrail.wire import MQError

    try:
        users, policies = admin.users(broker=broker), admin.acls(broker=broker)
        for error in (*users.failures.values(), *policies.failures.values()):
            raise error
    except (MQError, OSError) as error:
        return {"users": None, "policies": None, "access_note": str(error)}
    return {
        "users": [
            {name: text for name, text in user.members().items() if name != "password"}
            for found in users.found.values()
            for user in found
        ],
        "policies": [one.members() for found in policies.found.values() for one in found],
    }


def _accounts(admin: SyncAdmin, broker: str) -> dict[str, Any]:
    """Return the accounts of ACL files of a broker, without secret keys; None, and why, if it does not list them."""
    from mqtrail.wire import MQError

    try:
        accounts = admin.acl_accounts(broker=broker)
        for error in accounts.failures.values():
            raise error
    except (MQError, OSError) as error:
        return {"accounts": None, "accounts_note": f"{error}: if the broker uses ACL files, copy conf/plain_acl.yml"}
    return {"accounts": next(iter(accounts.values())).members()}


def cluster_ping(
    count: Annotated[
        int, typer.Option("--count", min=1, max=1_000, help="Number of messages to send to each broker.")
    ] = 3,
    size: Annotated[int, typer.Option("--size", min=1, max=1_048_576, help="Size of each message in bytes.")] = 128,
    cluster: Cluster = None,
    namesrv: Namesrv = None,
    config: ConfigFile = None,
    json: Json = False,
) -> int:
    """Send test messages to the topic named after each broker, and show the latency."""
    import time

    from mqtrail.client import SyncProducer
    from mqtrail.wire import Message, MessageQueue, MQError

    settings = load(config)
    servers = settings.namesrv(namesrv)
    rows = []
    failures: dict[str, str] = {}
    with (
        admin_of(settings, namesrv) as admin,
        SyncProducer("mqtrail-cli", servers, config=settings.client("producer")) as producer,
        progress("sending", enabled=not json),
    ):
        for name in admin.masters(cluster):
            took = []
            try:
                for _ in range(count):
                    begun = time.monotonic()
                    producer.send(Message(name, b"." * size), queue=MessageQueue(name, name, 0))
                    took.append((time.monotonic() - begun) * 1000)
            except MQError as error:
                failures[name] = str(error)
            rows.append(
                {
                    "broker": name,
                    "stored": len(took),
                    "first_ms": round(took[0], 2) if took else None,
                    "mean_ms": round(sum(took) / len(took), 2) if took else None,
                    "worst_ms": round(max(took), 2) if took else None,
                }
            )
    if json:
        show_json({"brokers": rows, "failures": failures})
    else:
        table(("broker", "stored", "first ms", "mean ms", "worst ms"), [list(row.values()) for row in rows])
    warn_failures(failures, "did not store a message")
    return Exit.OK if rows and not failures else Exit.FAILED


def cluster_wipe(
    broker: BrokerName, yes: Yes = False, namesrv: Namesrv = None, config: ConfigFile = None, json: Json = False
) -> int:
    """Remove the write permission of a broker on every name server, for example before you stop it."""
    confirm_change(f"remove broker {broker!r} from the routes of all producers", yes)
    with admin_of(load(config), namesrv) as admin:
        done = admin.wipe_write_perm(broker)
    counts = sum(done.values())
    return report_change(
        done,
        f"{counts} topics are no longer writable on {broker}",
        "did not change the write permission",
        json,
        broker=broker,
    )


def cluster_unwipe(broker: BrokerName, namesrv: Namesrv = None, config: ConfigFile = None, json: Json = False) -> int:
    """Restore the write permission of a broker after `cluster wipe`."""
    with admin_of(load(config), namesrv) as admin:
        done = admin.add_write_perm(broker)
    counts = sum(done.values())
    return report_change(
        done, f"{counts} topics are writable on {broker}", "did not change the write permission", json, broker=broker
    )


def cluster_clean(
    what: Annotated[
        str, typer.Argument(help="queues: ConsumeQueue files without messages; logs: expired CommitLog files.")
    ],
    cluster: Cluster = None,
    broker: Broker = None,
    yes: Yes = False,
    namesrv: Namesrv = None,
    config: ConfigFile = None,
    json: Json = False,
) -> int:
    """Delete expired files on brokers now."""
    if what not in ("queues", "logs"):
        raise UsageError(f"found {what!r}, expected queues or logs")
    confirm_change(f"delete the expired {what} of brokers", yes)
    with admin_of(load(config), namesrv) as admin:
        clean = admin.clean_expired_queues if what == "queues" else admin.delete_expired_logs
        done = clean(cluster=cluster, broker=broker)
    return report_change(done, f"cleaned its {what}", "did not clean", json)


def cluster_namesrv(
    setting: Annotated[
        list[str] | None, typer.Argument(help="NAME… to show, or NAME=VALUE… to set; omitted: show all.")
    ] = None,
    yes: Yes = False,
    namesrv: Namesrv = None,
    config: ConfigFile = None,
    json: Json = False,
) -> int:
    """Show or change the settings of running name servers."""
    names, values = _parted(setting or [])
    with admin_of(load(config), namesrv) as admin:
        if values:
            confirm_change(f"change {', '.join(values)} of running name servers", yes)
            text = ", ".join(f"{name}={value}" for name, value in values.items())
            return report_change(admin.set_namesrv_config(values), text, "did not change", json, settings=values)
        found = admin.namesrv_config()
    shown = {
        address: {one: known.get(one) for one in names} if names else known
        for address, known in sorted(found.found.items())
    }
    if not json:
        for address, known in shown.items():
            table(("setting", "value"), sorted(known.items()), address)
    return report_answer({"name_servers": shown}, failures_of(found), json)


def cluster_kv(
    namespace: Annotated[str, typer.Argument(help="Namespace, for example ORDER_TOPIC_CONFIG.")],
    setting: Annotated[
        list[str] | None, typer.Argument(help="KEY… to show or delete, or KEY=VALUE… to set; omitted: show all.")
    ] = None,
    delete: Annotated[bool, typer.Option("--delete", help="Delete the given keys.")] = False,
    yes: Yes = False,
    namesrv: Namesrv = None,
    config: ConfigFile = None,
    json: Json = False,
) -> int:
    """Show, set or delete entries of the name servers' key-value store."""
    keys, values = _parted(setting or [])
    if delete and (values or not keys):
        raise UsageError("--delete: expected KEY…, without =VALUE")
    with admin_of(load(config), namesrv) as admin:
        if delete or values:
            confirm_change(f"{'delete' if delete else 'set'} {', '.join(keys or values)} in {namespace!r}", yes)
            codes = [
                report_change(admin.kv_delete(namespace, key), f"deleted {key}", f"did not delete {key}", json, key=key)
                for key in keys
            ] + [
                report_change(
                    admin.kv_put(namespace, key, value), f"{key}={value}", f"did not set {key}", json, key=key
                )
                for key, value in values.items()
            ]
            return max(codes)
        found = {key: admin.kv_get(namespace, key) for key in keys} if keys else admin.kv_list(namespace)
    if json:
        show_json({"namespace": namespace, "values": found})
    else:
        table(("key", "value"), sorted((key, value) for key, value in found.items()), namespace)
    return Exit.OK if found and None not in found.values() else Exit.FAILED
