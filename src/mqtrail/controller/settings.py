"""The settings of a running controller: request 1010 returns them, request 1009 changes them."""

from typing import Final

from mqtrail.wire import change_by_lines, conf_lines

from .config import ControllerConfig

BLACK_LIST: Final = ("configBlackList", "configStorePath", "rocketmqHome")


def settings_text(config: ControllerConfig) -> str:
    """Return the settings as lines of a properties file, sorted by key."""
    return "".join(f"{key}={value}\n" for key, value in sorted(conf_lines(config)))


def update_settings(config: ControllerConfig, text: str) -> None:
    """Change settings by the text of a .properties file, all or none, until the controller stops.

    NoPermission, InvalidParameter: as of change_by_lines.
    """
    change_by_lines(config, text, BLACK_LIST)
