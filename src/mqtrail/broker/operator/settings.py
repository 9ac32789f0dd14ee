"""Settings of the running broker: request 26 shows them, request 25 changes those that are changeable.

A change lasts until the broker stops; the next start uses file and flags again. If one key of a request cannot be
changed, none is.

Source: AdminBrokerProcessor.updateBrokerConfig, Configuration, apache/rocketmq broker/ and remoting/.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

from mqtrail.store import Retention
from mqtrail.wire import (
    IMPLEMENTATION,
    IMPLEMENTATION_KEY,
    BrokerConfigResponseHeader,
    DataVersion,
    InvalidParameter,
    Peer,
    RemotingCommand,
    Send,
    Setting,
    answer,
    change_settings,
    conf_keys,
    conf_lines,
    properties_of,
    read_setting,
    refuse_black_listed,
)

from ..config import BrokerConfig, properties_text
from ..files import next_version
from ..state import BrokerState

_SETTINGS: Final = conf_keys(BrokerConfig)
_RETENTION: Final = conf_keys(Retention)
CHANGEABLE: Final = {key: one for key, one in (_SETTINGS | _RETENTION).items() if one.changeable}
"""Key of broker.conf -> setting, of those that request 25 may change."""

# Keys that requests must never change, besides those in configBlackList.
BLACK_LIST: Final = ("brokerConfigPath", "rocketmqHome", "configBlackList")


class SettingsRequests:
    """Serves requests 25 and 26. changed: called with the names of changed settings."""

    def __init__(self, state: BrokerState, changed: Callable[[frozenset[str], int], None]) -> None:
        self._config = state.config
        self._store = state.store
        self._changed = changed
        self._version = DataVersion(state.boot_ms)
        self._message_size_max = state.config.message_size_max

    def show(self, peer: Peer, request: RemotingCommand, now_ms: int) -> list[Send]:
        """26: the settings as lines of a broker.conf."""
        ext = BrokerConfigResponseHeader(self._version.encode().decode()).to_ext()
        lines = [f"{key}={text}\n" for key, text in conf_lines(self._store.retention)]
        lines += properties_text(self._config).splitlines(keepends=True)
        lines.append(f"{IMPLEMENTATION_KEY}={IMPLEMENTATION}\n")
        return answer(peer, request, ext, body="".join(sorted(lines)).encode())

    def update(self, peer: Peer, request: RemotingCommand, now_ms: int) -> list[Send]:
        """25. NoPermission: a key of the black list. InvalidParameter: a key or value that is not allowed."""
        pairs = properties_of(str(request.body, "utf-8", "replace"))
        refuse_black_listed(pairs, {*BLACK_LIST, *self._config.config_black_list.split(";")})
        values: dict[str, object] = {}
        retention: dict[str, Any] = {}
        for key, text in pairs.items():
            one = self._changeable(key)
            (retention if key in _RETENTION else values)[one.name] = read_setting(key, one, text)
        size_max = values.get("message_size_max", 0)
        if isinstance(size_max, int) and size_max > self._message_size_max:
            raise InvalidParameter(
                f"found maxMessageSize {size_max}, expected at most {self._message_size_max}, the value at the start "
                "of this broker: restart it with a larger one"
            )
        kept = replace(self._store.retention, **retention) if retention else None
        now = {name for name, value in values.items() if getattr(self._config, name) != value}
        change_settings(self._config, values)
        if kept is not None:
            self._store.retention = kept
        if pairs:
            self._version = next_version(self._version, now_ms)
        if now:
            self._changed(frozenset(now), now_ms)
        return answer(peer, request)

    def _changeable(self, key: str) -> Setting:
        if (one := CHANGEABLE.get(key)) is not None:
            return one
        if key in _SETTINGS:
            raise InvalidParameter(
                f"found a change of {key}, which needs a restart: change it in broker.conf and restart the broker"
            )
        raise InvalidParameter(
            f"found {key}, which has no effect here: expected one of {', '.join(sorted(CHANGEABLE))}"
        )
