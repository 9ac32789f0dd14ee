"""The settings of a running name server: request 319 returns them, request 318 changes them.

Source: DefaultRequestProcessor.updateConfig, getConfig, apache/rocketmq namesrv/.
"""

from typing import Final

from mqtrail.wire import Peer, RemotingCommand, Send, answer, change_by_lines, conf_lines

from .config import NameServerConfig

BLACK_LIST: Final = ("configBlackList", "configStorePath", "kvConfigPath", "rocketmqHome")


class NameServerSettings:
    """Shows and changes the settings of one name server."""

    def __init__(self, config: NameServerConfig) -> None:
        self._config = config

    def show(self, peer: Peer, request: RemotingCommand, now_ms: int) -> list[Send]:
        """319."""
        return answer(peer, request, body=settings_text(self._config).encode())

    def update(self, peer: Peer, request: RemotingCommand, now_ms: int) -> list[Send]:
        """318. The change lasts until the name server stops. NoPermission, InvalidParameter."""
        change_by_lines(self._config, str(request.body, "utf-8", "replace"), BLACK_LIST)
        return answer(peer, request)


def settings_text(config: NameServerConfig) -> str:
    """Return the settings as lines of a properties file, sorted by key: the body of the reply to request 319."""
    lines = dict(conf_lines(config))
    lines["listenPort"] = str(config.listen_port)
    return "".join(f"{key}={lines[key]}\n" for key in sorted(lines))
