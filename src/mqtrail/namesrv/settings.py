"""The settings of a running name server: request 319 returns them, request 318 changes them.

Source: DefaultRequestProcessor.updateConfig, getConfig, apache/rocketmq namesrv/.
"""

from typing import Final

from mqtrail.wire import (
    InvalidParameter,
    NoPermission,
    Peer,
    RemotingCommand,
    Send,
    answer,
    change_settings,
    conf_keys,
    conf_lines,
)

from .config import NameServerConfig

BLACK_LIST: Final = ("configBlackList", "configStorePath", "kvConfigPath", "rocketmqHome")
_CHANGEABLE: Final = {key: one for key, one in conf_keys(NameServerConfig).items() if one.changeable}


class NameServerSettings:
    """Shows and changes the settings of one name server."""

    def __init__(self, config: NameServerConfig) -> None:
        self._config = config

    def show(self, peer: Peer, request: RemotingCommand, now_ms: int) -> list[Send]:
        """319."""
        return answer(peer, request, body=settings_text(self._config).encode())

    def update(self, peer: Peer, request: RemotingCommand, now_ms: int) -> list[Send]:
        """318. The change lasts until the name server stops. NoPermission, InvalidParameter."""
        update_settings(self._config, str(request.body, "utf-8", "replace"))
        return answer(peer, request)


def settings_text(config: NameServerConfig) -> str:
    """Return the settings as lines of a properties file, sorted by key: the body of the reply to request 319."""
    lines = dict(conf_lines(config))
    lines["listenPort"] = str(config.listen_port)
    return "".join(f"{key}={lines[key]}\n" for key in sorted(lines))


def update_settings(config: NameServerConfig, text: str) -> None:
    """Change config by the `key=value` lines of request 318, all of them or none.

    NoPermission: a key must not be changed remotely. InvalidParameter: a key is unknown, or its value is invalid.
    """
    values: dict[str, object] = {}
    for line in text.splitlines():
        key, _, value = (part.strip() for part in line.partition("="))
        if not key or key[0] in "#!":
            continue
        if key in BLACK_LIST:
            raise NoPermission(f"Can not update config in black list. found {key}: set it before the start")
        one = _CHANGEABLE.get(key)
        if one is None:
            raise InvalidParameter(
                f"found {key}, which has no effect here or needs a restart: expected one of {', '.join(_CHANGEABLE)}"
            )
        try:
            values[one.name] = one.unit.read(value)
        except ValueError:
            raise InvalidParameter(f"found {key}={value!r:.40}, expected a number") from None
    change_settings(config, values)
