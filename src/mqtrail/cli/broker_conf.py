"""Reads a RocketMQ broker.conf: which of its keys mean something here, and what they mean."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from mqtrail.broker import BROKER_CONF
from mqtrail.cli.exits import UsageError

HOUR_MS = 3_600_000
QUEUE_ENTRY_SIZE = 20

OTHERS: Mapping[str, tuple[str, str, Callable[[str], object]]] = {
    "namesrvAddr": ("node", "namesrv_addresses", lambda text: text.replace(";", ",")),
    "brokerIP1": ("node", "advertise", str),
    "listenPort": ("node", "broker_port", int),
    "mappedFileSizeCommitLog": ("store", "segment_size", int),
    "mappedFileSizeConsumeQueue": ("store", "queue_entries", lambda text: int(text) // QUEUE_ENTRY_SIZE),
    "messageIndexEnable": ("store", "index", str),
    "maxHashSlotNum": ("store", "index_slots", int),
    "maxIndexNum": ("store", "index_entries", int),
    "mappedFileSizeTimerLog": ("store", "timer_log_file_size", int),
    "fileReservedTime": ("store", "retention_ms", lambda text: int(text) * HOUR_MS),
    "deleteWhen": ("store", "delete_hours", lambda text: text.replace(";", ",")),
    "diskMaxUsedSpaceRatio": ("store", "expire_ratio", lambda text: int(text) / 100),
    "checkCRCOnRecover": ("store", "check_crc", str),
    "flushIntervalCommitLog": ("node", "flush_interval_ms", int),
    "cleanResourceInterval": ("node", "expire_interval_ms", int),
}
"""Key -> table, field and reader, of the keys that BROKER_CONF has not: of store and node."""


@dataclass(frozen=True, slots=True)
class BrokerConf:
    """What a broker.conf says: table -> field -> value; and the keys that have no effect here."""

    values: Mapping[str, Mapping[str, object]]
    unknown: tuple[str, ...]


def read_broker_conf(path: Path) -> BrokerConf:
    """Read a file of key=value lines. UsageError when it cannot be read or a value is not what its key takes."""
    try:
        lines = path.read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"broker.conf {path} cannot be read: {error}") from error
    values: dict[str, dict[str, object]] = {"broker": {}, "store": {}, "node": {}}
    unknown: list[str] = []
    for number, line in enumerate(lines, 1):
        text = line.strip()
        if not text or text[0] in "#!":
            continue
        key, equals, value = (part.strip() for part in text.partition("="))
        if not equals:
            raise UsageError(f"{path}:{number}: found {text!r}, expected key=value")
        try:
            if (known := BROKER_CONF.get(key)) is not None:
                values["broker"][known.field] = known.read(value)
            elif (other := OTHERS.get(key)) is not None:
                table, field, read = other
                values[table][field] = read(value)
            else:
                unknown.append(key)
        except ValueError:
            raise UsageError(f"{path}:{number}: found {key}={value}, expected a number") from None
    return BrokerConf(values, tuple(unknown))
