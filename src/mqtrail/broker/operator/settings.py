"""Settings while the broker runs: 26 shows them, 25 changes those of RocketMQ's that are looked at when they count.

A change lasts until the broker stops; what it starts with next time is its file's and its flags'. It is all or
nothing: one key that cannot be changed, and nothing is.

Source: AdminBrokerProcessor.updateBrokerConfig, Configuration, apache/rocketmq broker/ and remoting/.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final

from mqtrail.store import MessageStore
from mqtrail.wire import (
    IMPLEMENTATION,
    IMPLEMENTATION_KEY,
    BrokerConfigResponseHeader,
    DataVersion,
    InvalidParameter,
    NoPermission,
    Peer,
    RemotingCommand,
    Send,
    answer,
    properties_of,
)

from ..config import BROKER_CONF, BrokerConfig, ConfKey, properties_text

HOUR_MS: Final = 3_600_000

# Fields that every reader asks for at the moment of use, or that are handed on by `changed`.
CHANGEABLE: Final = frozenset(
    {
        "auto_create_group",
        "auto_create_topic",
        "broadcast_expire_max_ms",
        "broadcast_expire_ms",
        "broadcast_offsets",
        "client_expire_ms",
        "consumer_fall_behind_size",
        "default_pop_share_queue_nums",
        "default_request_mode",
        "fast_failure",
        "filter_retry",
        "lite_pull",
        "long_polling",
        "message_size_max",
        "offsets_save_ms",
        "permission",
        "pop_actual_retry_topic",
        "pop_from_retry_percent",
        "pop_from_retry_v1",
        "property_filter",
        "protect_broker",
        "pull_count_max",
        "pull_size_max",
        "query_count_default",
        "query_count_max",
        "recall",
        "reject_transactions",
        "retry_topic_v2",
        "revive_interval_ms",
        "server_load_balance",
        "server_side_reset",
        "short_polling_ms",
        "start_accept_ms",
        "store_replies",
        "timer_delay_max_ms",
        "timer_slot_max",
        "timers",
        "transaction_check_max",
        "transaction_check_ms",
        "transaction_op_delay_ms",
        "transaction_op_size_max",
        "transaction_timeout_ms",
        "wait_ack_ms",
        "wait_admin_ms",
        "wait_heartbeat_ms",
        "wait_lite_pull_ms",
        "wait_pull_ms",
        "wait_send_ms",
        "wait_transaction_ms",
    }
)

# What no one may change from afar, whatever else is listed in configBlackList.
BLACK_LIST: Final = ("brokerConfigPath", "rocketmqHome", "configBlackList")


def _percent(field: str) -> ConfKey:
    return ConfKey(field, lambda text: int(text) / 100, lambda ratio: str(round(float(str(ratio)) * 100)))


def _hours(text: str) -> tuple[int, ...]:
    hours = tuple(int(part) for part in text.replace(";", ",").split(",") if part.strip())
    if not hours:
        raise ValueError(text)
    return hours


RETENTION_CONF: Final[Mapping[str, ConfKey]] = {
    "deleteWhen": ConfKey(
        "delete_hours",
        _hours,
        lambda hours: ";".join(f"{hour:02}" for hour in hours),  # type: ignore[attr-defined]
    ),
    "diskMaxUsedSpaceRatio": _percent("expire_ratio"),
    "diskSpaceCleanForciblyRatio": _percent("force_ratio"),
    "diskSpaceWarningLevelRatio": _percent("full_ratio"),
    "fileReservedTime": ConfKey(
        "retention_ms", lambda text: int(text) * HOUR_MS, lambda ms: str(int(str(ms)) // HOUR_MS)
    ),
}
"""Keys of the store's retention, in RocketMQ's units."""


class SettingsRequests:
    """Shows and changes. changed: told the names of fields that have other values now."""

    def __init__(
        self, config: BrokerConfig, store: MessageStore, boot_ms: int, changed: Callable[[frozenset[str], int], None]
    ) -> None:
        self._config = config
        self._store = store
        self._changed = changed
        self._version = DataVersion(boot_ms)
        self._message_size_max = config.message_size_max

    def show(self, peer: Peer, request: RemotingCommand, now_ms: int) -> list[Send]:
        """26: the settings as lines of a broker.conf."""
        ext = BrokerConfigResponseHeader(self._version.encode().decode()).to_ext()
        retention = self._store.retention
        lines = [f"{key}={entry.write(getattr(retention, entry.field))}\n" for key, entry in RETENTION_CONF.items()]
        lines += properties_text(self._config).splitlines(keepends=True)
        lines.append(f"{IMPLEMENTATION_KEY}={IMPLEMENTATION}\n")
        return answer(peer, request, ext, body="".join(sorted(lines)).encode())

    def update(self, peer: Peer, request: RemotingCommand, now_ms: int) -> list[Send]:
        """25. NoPermission: a key of the black list. InvalidParameter: one that cannot be changed, or its value."""
        pairs = properties_of(str(request.body, "utf-8", "replace"))
        forbidden = {*BLACK_LIST, *self._config.config_black_list.split(";")}
        if found := sorted(forbidden & pairs.keys()):
            raise NoPermission(f"Can not update config in black list. found {found[0]}: set it before the start")
        values: dict[str, object] = {}
        retention: dict[str, object] = {}
        for key, text in pairs.items():
            if (entry := RETENTION_CONF.get(key)) is not None:
                retention[entry.field] = _value(key, entry, text)
            else:
                entry = self._entry(key)
                values[entry.field] = _value(key, entry, text)
        size_max = values.get("message_size_max", 0)
        if isinstance(size_max, int) and size_max > self._message_size_max:
            raise InvalidParameter(
                f"found maxMessageSize {size_max}, expected at most {self._message_size_max}, which this broker was "
                "started with: its store has room for no more"
            )
        kept = replace(self._store.retention, **retention) if retention else None  # type: ignore[arg-type]
        now = {name for name, value in values.items() if getattr(self._config, name) != value}
        self._config.change(values)
        if kept is not None:
            self._store.retention = kept
        if pairs:
            self._version = DataVersion(now_ms, self._version.counter + 1)
        if now:
            self._changed(frozenset(now), now_ms)
        return answer(peer, request)

    def _entry(self, key: str) -> ConfKey:
        entry = BROKER_CONF.get(key)
        if entry is None:
            raise InvalidParameter(
                f"found {key}, which has no effect here: expected one of "
                f"{', '.join(sorted([*RETENTION_CONF, *(k for k, e in BROKER_CONF.items() if e.field in CHANGEABLE)]))}"
            )
        if entry.field not in CHANGEABLE:
            raise InvalidParameter(f"found a change of {key}, which stands from the start on: restart with another one")
        return entry


def _value(key: str, entry: ConfKey, text: str) -> object:
    try:
        return entry.read(text)
    except ValueError:
        raise InvalidParameter(f"found {key}={text!r:.80}, expected a value as in broker.conf") from None
