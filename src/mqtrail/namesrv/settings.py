"""The name server's settings while it runs: 319 shows them, 318 changes those of RocketMQ's that it has.

Source: DefaultRequestProcessor.updateConfig, getConfig, apache/rocketmq namesrv/.
"""

from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from mqtrail.wire import InvalidParameter, NoPermission

from .config import NameServerConfig

BLACK_LIST: Final = ("configBlackList", "configStorePath", "kvConfigPath", "rocketmqHome")


class _Key(NamedTuple):
    field: str
    read: Callable[[str], object]


def _switch(text: str) -> bool:
    return text.strip().lower() == "true"


CHANGEABLE: Final[Mapping[str, _Key]] = {
    "deleteTopicWithBrokerRegistration": _Key("delete_with_registration", _switch),
    "enableAllTopicList": _Key("topic_list", _switch),
    "enableTopicList": _Key("cluster_topic_list", _switch),
    "needWaitForService": _Key("wait_for_service", _switch),
    "orderMessageEnable": _Key("order_conf_in_route", _switch),
    "returnOrderTopicConfigToBroker": _Key("order_conf_to_broker", _switch),
    "scanNotActiveBrokerInterval": _Key("scan_ms", int),
    "waitSecondsForService": _Key("wait_for_service_ms", lambda text: int(text) * 1000),
}
"""RocketMQ's key -> our field."""


def settings_text(config: NameServerConfig) -> str:
    """Return the settings as lines of a properties file, by key: what request 319 answers."""
    lines = {key: getattr(config, entry.field) for key, entry in CHANGEABLE.items()}
    lines["waitSecondsForService"] = config.wait_for_service_ms // 1000
    lines["listenPort"] = config.listen_port
    return "".join(f"{key}={str(lines[key]).lower()}\n" for key in sorted(lines))


def change_settings(config: NameServerConfig, text: str) -> None:
    """Change config by the `key=value` lines of request 318, all of them or none.

    NoPermission: a key that nobody may change from afar. InvalidParameter: one that is not known here, or its value.
    """
    values: dict[str, object] = {}
    for line in text.splitlines():
        key, _, value = (part.strip() for part in line.partition("="))
        if not key or key[0] in "#!":
            continue
        if key in BLACK_LIST:
            raise NoPermission(f"Can not update config in black list. found {key}: set it before the start")
        entry = CHANGEABLE.get(key)
        if entry is None:
            raise InvalidParameter(
                f"found {key}, which has no effect here or stands from the start on: expected one of "
                f"{', '.join(CHANGEABLE)}"
            )
        try:
            values[entry.field] = entry.read(value)
        except ValueError:
            raise InvalidParameter(f"found {key}={value!r:.40}, expected a number") from None
    config.change(values)
