"""Declares settings: fields of frozen config dataclasses with their description, bounds and RocketMQ's names.

    class BrokerConfig:
        pull_size_max: int = setting(256 * KIB, "maximum bytes per pull", conf="maxTransferBytesOnMessageInMemory")

Readers of broker.conf and of the settings file, the requests that show and change settings, and the tables of
docs/reference/settings.md are derived from these declarations. A field without a declaration is not a setting: the
program sets it.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from types import MappingProxyType
from typing import Any, Final, NamedTuple, TypeVar, get_type_hints

from .errors import InvalidParameter, NoPermission
from .java_properties import properties_of
from .moments import LONG_MAX

__all__ = [
    "BOOLEAN",
    "HOURS",
    "PERCENT",
    "SECONDS",
    "Setting",
    "SettingUnit",
    "change_by_lines",
    "change_settings",
    "check_settings",
    "conf_keys",
    "conf_lines",
    "read_setting",
    "refuse_black_listed",
    "setting",
    "settings_of",
    "whole",
]

T = TypeVar("T")
_KEY: Final = "setting"


class SettingUnit(NamedTuple):
    """How a value is written in RocketMQ's files. read raises ValueError; expected: what it reads."""

    read: Callable[[str], object]
    write: Callable[[Any], str]
    expected: str = "a number"


def whole(text: str) -> int:
    """Return a number as Java's long has it. ValueError: the text is not a number of 64 bits."""
    number = int(text) if len(text) <= 40 else LONG_MAX + 1
    if not -LONG_MAX - 1 <= number <= LONG_MAX:
        raise ValueError("found a number of more than 64 bits")
    return number


def _is_true(text: str) -> bool:
    return text.strip().lower() == "true"  # Boolean.parseBoolean: any other text is false


def scaled(factor: int) -> SettingUnit:
    """Whole numbers in RocketMQ's files, multiplied by `factor` here."""
    return SettingUnit(lambda text: whole(text) * factor, lambda value: str(value // factor))


TEXT: Final = SettingUnit(str, str, "a text")
BOOLEAN: Final = SettingUnit(_is_true, lambda value: "true" if value else "false", "true or false")
NUMBER: Final = SettingUnit(whole, str)
SECONDS: Final = scaled(1_000)
HOURS: Final = scaled(3_600_000)
PERCENT: Final = SettingUnit(lambda text: whole(text) / 100, lambda ratio: str(round(ratio * 100)))
_UNITS: Final[Mapping[object, SettingUnit]] = {bool: BOOLEAN, int: NUMBER, int | None: NUMBER}


@dataclass(frozen=True, slots=True)
class Setting:
    """The declaration of a setting.

    text: what it does, for the documentation. conf: the key in RocketMQ's file that sets it. like: RocketMQ's name of a
    setting that no file sets here. least, most: bounds of a number, or of the length of a text. changeable: it can
    change while the server runs.
    """

    name: str
    text: str
    unit: SettingUnit
    conf: str = ""
    like: str = ""
    least: int | None = None
    most: int | None = None
    changeable: bool = False
    secret: bool = False

    def check(self, value: Any) -> None:
        """Raise InvalidParameter for a value outside the bounds."""
        if self.least is None or value is None:
            return
        if isinstance(value, str):
            if len(value) < self.least:
                raise InvalidParameter(f"found an empty {self.name}{self._as_conf(value)}, expected a name")
        elif value < self.least or (self.most is not None and value > self.most):
            expected = f"{self.least} or more" if self.most is None else f"{self.least} to {self.most}"
            raise InvalidParameter(f"found {self.name} {value}{self._as_conf(value)}, expected {expected}")

    def _as_conf(self, value: Any) -> str:
        """Return RocketMQ's key, if it has one, and the value as its file has it if that differs."""
        written = self.unit.write(value)
        return "" if not self.conf else f" ({self.conf})" if written == str(value) else f" ({self.conf}={written})"


def setting(
    default: T,
    text: str,
    *,
    conf: str = "",
    like: str = "",
    unit: SettingUnit | None = None,
    least: int | None = None,
    most: int | None = None,
    changeable: bool = False,
    secret: bool = False,
) -> T:
    """Declare a field of a config dataclass; see Setting. unit: needed if the field's type does not decide it."""
    declared = (text, unit, conf, like, least, most, changeable, secret)
    made: T = field(default=default, repr=not secret, metadata={_KEY: declared})
    return made


_KNOWN: Final[dict[type[Any], Mapping[str, Setting]]] = {}


def settings_of(cls: type[Any]) -> Mapping[str, Setting]:
    """Return the settings that a config class declares, by name, in order."""
    if (known := _KNOWN.get(cls)) is None:
        known = _KNOWN[cls] = MappingProxyType(dict(_declared(cls)))
    return known


def _declared(cls: type[Any]) -> Iterator[tuple[str, Setting]]:
    hints = get_type_hints(cls)
    for one in fields(cls):
        if (declared := one.metadata.get(_KEY)) is not None:
            text, unit, *rest = declared
            yield one.name, Setting(one.name, text, unit or _UNITS.get(hints[one.name], TEXT), *rest)


def conf_keys(cls: type[Any]) -> dict[str, Setting]:
    """Return the settings that have a key in RocketMQ's file, by this key, sorted."""
    return {one.conf: one for one in sorted(settings_of(cls).values(), key=lambda one: one.conf) if one.conf}


def check_settings(config: object) -> None:
    """Raise InvalidParameter if a setting is outside its bounds."""
    for name, one in settings_of(type(config)).items():
        one.check(getattr(config, name))


def change_settings(config: Any, values: Mapping[str, object]) -> None:
    """Set fields of the config of a running server, all or none. InvalidParameter: a value is invalid."""
    replace(config, **values)
    for name, value in values.items():
        object.__setattr__(config, name, value)


def change_by_lines(config: Any, text: str, black_list: Collection[str]) -> None:
    """Change changeable settings of a running server by the text of a .properties file, all or none, until it stops.

    NoPermission: a key of the black list. InvalidParameter: a key is unknown or needs a restart, or a value is invalid.
    """
    changeable = {key: one for key, one in conf_keys(type(config)).items() if one.changeable}
    values: dict[str, object] = {}
    pairs = properties_of(text)
    refuse_black_listed(pairs, black_list)
    for key, value in pairs.items():
        one = changeable.get(key)
        if one is None:
            raise InvalidParameter(
                f"found {key}, which has no effect here or needs a restart: expected one of {', '.join(changeable)}"
            )
        values[one.name] = read_setting(key, one, value)
    change_settings(config, values)


def refuse_black_listed(keys: Iterable[str], black_list: Collection[str]) -> None:
    """NoPermission: a key of the black list."""
    if found := sorted(set(keys) & set(black_list)):
        raise NoPermission(f"Can not update config in black list. found {found[0]}: set it before the start")


def read_setting(key: str, one: Setting, text: str) -> object:
    """Return the value of a setting. InvalidParameter."""
    try:
        return one.unit.read(text)
    except ValueError:
        raise InvalidParameter(f"found {key}={text!r:.80}, expected {one.unit.expected}") from None


def conf_lines(config: object) -> Iterator[tuple[str, str]]:
    """Yield key and text of every setting that has a key and is not secret."""
    for key, one in conf_keys(type(config)).items():
        if not one.secret:
            yield key, one.unit.write(getattr(config, one.name))
