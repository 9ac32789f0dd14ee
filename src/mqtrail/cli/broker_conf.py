"""Reads a RocketMQ broker.conf: converts keys to settings, and reports keys without effect."""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from mqtrail.net import tls_settings
from mqtrail.wire import Setting, conf_keys, read_properties

from .config import config_class, warn_if_open_to_others
from .exits import UsageError

TABLES = ("broker", "store", "node", "server")
"""Tables of the settings file that have keys in a broker.conf."""

CONTROLLER_TABLES = ("controller", "server")
"""The same for a controller.conf."""

AS_IT_IS: Mapping[str, tuple[tuple[str, ...], str]] = {
    "controllerType": (("DLedger",), "controllers agree by mqtrail's own consensus"),
    "fileReservedTimeUnit": (("hour",), "the unit is always hours"),
    "metricsExporterType": (("PROM", "DISABLE", "0", "3"), "metrics are exported to Prometheus only"),
    "storeType": (("default", "defaultRocksDB"), "messages are always stored in files"),
}
"""Key -> values that equal mqtrail's fixed behaviour, and that behaviour; other values have no effect: report them."""

ELSEWHERE: Mapping[str, str] = {
    "storePathRootDir": "the store is <data>/<brokerName>: set the data folder with --data",
    "storePathCommitLog": "the CommitLog is <data>/<brokerName>/commitlog: set the data folder with --data",
    "storePathDLedgerCommitLog": "the log is in <data>/<brokerName>: set the data folder with --data",
    "storePathConsumeQueue": "the folder is in <data>/<brokerName>: set the data folder with --data",
    "storePathIndex": "the folder is in <data>/<brokerName>: set the data folder with --data",
    "controllerStorePath": "the log is <data>/controller: set the data folder with --data",
    "brokerIP2": "slaves connect to the address of brokerIP1",
}
"""Key -> what to do instead of setting it."""

LEDGER_PATH_KEY = "storePathDLedgerCommitLog"
_KEY = re.compile(r"[\w.-]{1,100}", re.ASCII)


@dataclass(frozen=True, slots=True)
class BrokerConf:
    """The content of a broker.conf. values: table -> field -> value. notes: a sentence per key without effect."""

    values: Mapping[str, Mapping[str, object]]
    notes: tuple[str, ...]


def conf_settings(tables: Sequence[str] = TABLES) -> dict[str, tuple[str, Setting]]:
    """Return key -> (table, setting) of the keys that have an effect."""
    return {key: (table, one) for table in tables for key, one in conf_keys(config_class(table)).items()}


def read_broker_conf(path: Path, tables: Sequence[str] = TABLES) -> BrokerConf:
    """Read a .properties file with keys of these tables. UsageError: it cannot be read, or a value is invalid."""
    try:
        lines = read_properties(path.read_text("utf-8-sig"))
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(
            f"broker.conf {path} cannot be read: {error}; expected a file of UTF-8 text: check its path and permissions"
        ) from error
    known = conf_settings(tables)
    values: dict[str, dict[str, object]] = {table: {} for table in (*tables, "tls_server")}
    notes: list[str] = []
    tls: dict[str, str] = {}
    for number, key, value in lines:
        if not value and not _KEY.fullmatch(key):  # for example UTF-16: to ignore it would ignore the whole file
            raise UsageError(f"{path}:{number}: found {key[:60]!r}, expected key=value")
        try:
            if key in known:
                table, one = known[key]
                values[table][one.name] = one.unit.read(value)
            elif key.startswith("tls."):
                tls[key] = value
            else:
                notes += _note(key, value, known)
        except ValueError:
            expected = known[key][1].unit.expected
            raise UsageError(f"{path}:{number}: found {key}={value[:60]}, expected {expected}") from None
    if values.get("broker", {}).get("ledger_mode") and any(key == LEDGER_PATH_KEY for _, key, _ in lines):
        raise UsageError(
            f"{path}: found {LEDGER_PATH_KEY} with enableDLegerCommitLog, expected the log in the broker's folder: "
            "a member that starts without its log may forget what it acknowledged; move the log to "
            "<data>/<brokerName>/dledger-<dLegerSelfId>, and remove the key"
        )
    tls_found = tls_settings(tls)
    if {"init_user", "inner_credentials"} & values.get("broker", {}).keys() or "key_password" in tls_found.server:
        warn_if_open_to_others(path)
    values["tls_server"] |= tls_found.server
    return BrokerConf(values, (*notes, *tls_found.notes))


def _note(key: str, value: str, known: Collection[str]) -> list[str]:
    """Return the note on a key without effect; none if its value equals the fixed behaviour."""
    if key in AS_IT_IS:
        same, so = AS_IT_IS[key]
        return [] if value in same else [f"{key}={value} has no effect here: {so}"]
    if key in ELSEWHERE:
        return [f"{key} has no effect here: {ELSEWHERE[key]}"]
    near = difflib.get_close_matches(key, known, n=1, cutoff=0.85)
    return [f"{key} has no effect here" + (f"; did you mean {near[0]}?" if near else "")]
