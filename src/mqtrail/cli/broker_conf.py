"""Reads a RocketMQ broker.conf: which of its keys mean something here, and what they mean."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from mqtrail.broker import BROKER_CONF, RETENTION_CONF
from mqtrail.net import tls_settings
from mqtrail.wire import read_properties

from .config import namesrv_addresses, warn_if_open_to_others
from .exits import UsageError

QUEUE_ENTRY_SIZE = 20

OTHERS: Mapping[str, tuple[str, str, Callable[[str], object]]] = {
    "bindAddress": ("node", "host", str),
    "rocketmqHome": ("node", "acl_home", str),
    "metricsPromExporterPort": ("node", "metrics_port", int),
    "initAuthenticationUser": ("broker", "init_user", str),
    "innerClientAuthenticationCredentials": ("broker", "inner_credentials", str),
    "serverChannelMaxIdleTimeSeconds": ("server", "idle_timeout_ms", lambda text: int(text) * 1_000),
    "namesrvAddr": ("node", "namesrv_addresses", namesrv_addresses),
    "brokerIP1": ("node", "advertise", str),
    "listenPort": ("node", "broker_port", int),
    "mappedFileSizeCommitLog": ("store", "segment_size", int),
    "mappedFileSizeConsumeQueue": ("store", "queue_entries", lambda text: int(text) // QUEUE_ENTRY_SIZE),
    "messageIndexEnable": ("store", "index", str),
    "maxHashSlotNum": ("store", "index_slots", int),
    "maxIndexNum": ("store", "index_entries", int),
    "mappedFileSizeTimerLog": ("store", "timer_log_file_size", int),
    "checkCRCOnRecover": ("store", "check_crc", str),
    "flushIntervalCommitLog": ("node", "flush_interval_ms", int),
    "cleanResourceInterval": ("node", "expire_interval_ms", int),
}
"""Key -> table, field and reader, of the keys that BROKER_CONF and RETENTION_CONF have not: of store, node and server,
and secrets."""

AS_IT_IS: Mapping[str, tuple[tuple[str, ...], str]] = {
    "brokerRole": (("ASYNC_MASTER",), "slaves are not supported yet, so every broker is an ASYNC_MASTER"),
    "fileReservedTimeUnit": (("hour",), "the unit is always hours"),
    "metricsExporterType": (("PROM", "DISABLE", "0", "3"), "metrics are exported to Prometheus only"),
    "storeType": (("default", "defaultRocksDB"), "messages are always stored in files"),
    "timerWheelEnable": (("true",), "timer messages are always enabled"),
}
"""Key -> the values that are as things are here, and what is so; any other value has no effect, and that is said."""

ELSEWHERE: Mapping[str, str] = {
    "storePathRootDir": "the store is <data>/<brokerName>: set the data folder with --data",
    "storePathCommitLog": "the CommitLog is <data>/<brokerName>/commitlog: set the data folder with --data",
    "storePathConsumeQueue": "the folder is in <data>/<brokerName>: set the data folder with --data",
    "storePathIndex": "the folder is in <data>/<brokerName>: set the data folder with --data",
    "brokerIP2": "slaves are not supported yet",
    "haListenPort": "slaves are not supported yet",
}
"""Key -> what to do instead."""


@dataclass(frozen=True, slots=True)
class BrokerConf:
    """What a broker.conf says: table -> field -> value; and, in words, the keys that have no effect here."""

    values: Mapping[str, Mapping[str, object]]
    notes: tuple[str, ...]


def read_broker_conf(path: Path) -> BrokerConf:
    """Read a .properties file. UsageError when it cannot be read or a value is not what its key takes."""
    try:
        lines = read_properties(path.read_text("utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"broker.conf {path} cannot be read: {error}") from error
    values: dict[str, dict[str, object]] = {"broker": {}, "store": {}, "node": {}, "server": {}, "tls_server": {}}
    notes: list[str] = []
    tls: dict[str, str] = {}
    for number, key, value in lines:
        if not value and key not in {**BROKER_CONF, **RETENTION_CONF, **OTHERS}:
            raise UsageError(f"{path}:{number}: found {key!r}, expected key=value")
        try:
            if (known := BROKER_CONF.get(key)) is not None:
                values["broker"][known.field] = known.read(value)
            elif (kept := RETENTION_CONF.get(key)) is not None:
                values["store"][kept.field] = kept.read(value)
            elif (other := OTHERS.get(key)) is not None:
                table, field, read = other
                values[table][field] = read(value)
            elif key.startswith("tls."):
                tls[key] = value
            else:
                notes += _note(key, value)
        except ValueError:
            raise UsageError(f"{path}:{number}: found {key}={value}, expected a number") from None
    told = tls_settings(tls)
    if {"init_user", "inner_credentials"} & values["broker"].keys() or "key_password" in told.server:
        warn_if_open_to_others(path)
    values["tls_server"] |= told.server
    return BrokerConf(values, (*notes, *told.notes))


def _note(key: str, value: str) -> list[str]:
    """Return what is to be said of a key that changes nothing; none where it says what is so anyway."""
    if key in AS_IT_IS:
        same, so = AS_IT_IS[key]
        return [] if value in same else [f"{key}={value} has no effect here: {so}"]
    if key in ELSEWHERE:
        return [f"{key} has no effect here: {ELSEWHERE[key]}"]
    near = difflib.get_close_matches(key, [*BROKER_CONF, *RETENTION_CONF, *OTHERS], n=1, cutoff=0.85)
    return [f"{key} has no effect here" + (f"; did you mean {near[0]}?" if near else "")]
