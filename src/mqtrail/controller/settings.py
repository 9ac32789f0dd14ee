"""The settings of a running controller: request 1010 returns them, request 1009 changes them."""

from typing import Final

from mqtrail.wire import InvalidParameter, NoPermission, change_settings, conf_keys, conf_lines

from .config import ControllerConfig

BLACK_LIST: Final = ("configBlackList", "configStorePath", "rocketmqHome")


def settings_text(config: ControllerConfig) -> str:
    """Return the settings as lines of a properties file, sorted by key."""
    return "".join(f"{key}={value}\n" for key, value in sorted(conf_lines(config)))


def update_settings(config: ControllerConfig, text: str) -> None:
    """Change settings by `key=value` lines, all or none, until the controller stops. NoPermission, InvalidParameter."""
    changeable = {key: one for key, one in conf_keys(ControllerConfig).items() if one.changeable}
    values: dict[str, object] = {}
    for line in text.splitlines():
        key, _, value = (part.strip() for part in line.partition("="))
        if not key or key[0] in "#!":
            continue
        if key in BLACK_LIST:
            raise NoPermission(f"Can not update config in black list. found {key}: set it before the start")
        one = changeable.get(key)
        if one is None:
            raise InvalidParameter(
                f"found {key}, which has no effect here or needs a restart: expected one of {', '.join(changeable)}"
            )
        try:
            values[one.name] = one.unit.read(value)
        except ValueError:
            raise InvalidParameter(f"found {key}={value!r:.40}, expected a number") from None
    change_settings(config, values)
