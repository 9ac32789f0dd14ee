"""Settings: turns a TOML file, the environment and flags into the rooms' frozen config objects.

    namesrv = "10.0.0.5:9876;10.0.0.6:9876"     # name servers of clients, look-ups and the pipeline
    data = "/var/lib/mqtrail"                   # data folder of `up`
    lake = "/srv/lake"
    [broker]                                    # one table per config class, its fields as keys
    message_delay_level = "1s 5s 10s"

Precedence: flag, environment (NAMESRV_ADDR, MQTRAIL_DATA), file, default. The file is the one of --config, otherwise
./mqtrail.toml if it exists. Only this module reads the file and the environment.
"""

from __future__ import annotations

import dataclasses
import importlib
import os
import re
import types
import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from mqtrail.wire import Host, InvalidParameter, MQError, settings_of

from .exits import UsageError
from .output import warn

if TYPE_CHECKING:
    from mqtrail.lake import LakePath

T = TypeVar("T")

FILE_DEFAULT = "mqtrail.toml"
DATA_DEFAULT = "mqtrail-data"
ENVIRONMENT = {"namesrv": "NAMESRV_ADDR", "data": "MQTRAIL_DATA", "tls_config": "MQTRAIL_TLS_CONFIG"}
"""Key of the file -> environment variable that overrides it."""
SECRETS: Mapping[tuple[str, str], str] = {
    ("credentials", "access_key"): "MQTRAIL_ACCESS_KEY",
    ("credentials", "secret_key"): "MQTRAIL_SECRET_KEY",
    ("credentials", "security_token"): "MQTRAIL_SECURITY_TOKEN",
    ("broker", "init_user"): "MQTRAIL_INIT_USER",
    ("broker", "inner_credentials"): "MQTRAIL_INNER_CREDENTIALS",
    ("controller", "inner_credentials"): "MQTRAIL_INNER_CREDENTIALS",
    ("controller", "admin_credentials"): "MQTRAIL_ADMIN_CREDENTIALS",
    ("tls_server", "key_password"): "MQTRAIL_TLS_SERVER_KEY_PASSWORD",
    ("tls", "key_password"): "MQTRAIL_TLS_KEY_PASSWORD",
    ("console", "oidc_client_secret"): "MQTRAIL_OIDC_CLIENT_SECRET",
    ("node", "store_url"): "MQTRAIL_STORE_URL",  # it may have a password
    ("node", "store_nodes"): "MQTRAIL_STORE_NODES",
    ("node", "store_replicas"): "MQTRAIL_STORE_REPLICAS",
}
"""(table, key) -> environment variable that overrides the file. No flag takes a secret itself, because other users of a
machine can read command lines."""
OPERATOR_TOKEN = "MQTRAIL_OPERATOR_TOKEN"  # environment variable: what an operator shows an HTTP door
BINLOG_PASSWORD = "MQTRAIL_BINLOG_PASSWORD"  # environment variable: of the user of `binlog run`
PASSWORD_IN_URL = re.compile(r"://[^/@:]*:[^/@]+@")
TOP_KEYS = ("namesrv", "data", "lake", "tls_config")
ROOMS: Mapping[str, tuple[str, str]] = {
    "broker": ("mqtrail.broker", "BrokerConfig"),
    "store": ("mqtrail.store", "CommitLogConfig"),
    "node": ("mqtrail.node", "NodeConfig"),
    "server": ("mqtrail.net", "ServerConfig"),
    "namesrv_server": ("mqtrail.namesrv", "NameServerConfig"),
    "controller": ("mqtrail.controller", "ControllerConfig"),
    "tls_server": ("mqtrail.net", "TlsServerConfig"),
    "client": ("mqtrail.client", "InstanceConfig"),
    "credentials": ("mqtrail.wire", "Credentials"),
    "tls": ("mqtrail.net", "TlsClientConfig"),
    "producer": ("mqtrail.client", "ProducerConfig"),
    "consumer": ("mqtrail.client", "ConsumerConfig"),
    "trace": ("mqtrail.client", "TraceConfig"),
    "console": ("mqtrail.answers.access", "AccessConfig"),
    "judge": ("mqtrail.trail", "Settings"),
    "pipeline": ("mqtrail.pipeline", "JobConfig"),
    "spark": ("mqtrail.pipeline", "SessionConfig"),
}
"""Table of the file -> module and class of its config object, imported when a command needs it."""
_SIZE = re.compile(r"(-?[0-9_]+)\s*(|KiB|MiB|GiB)", re.IGNORECASE)
_SIZES = {"": 1, "kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30}


@dataclass(frozen=True, slots=True)
class Layer:
    """Settings of one config object from one source. where: the name of the source in errors."""

    where: str
    values: Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Config:
    """The file's and the environment's settings. path: the file that was read, None without one."""

    values: Mapping[str, Any] = field(default_factory=dict, repr=False)  # may contain keys and passwords
    path: Path | None = None
    environment: Mapping[str, str] = field(default_factory=dict, repr=False)

    def namesrv(self, flag: str | None, *, is_default_used: bool = True) -> str:
        """Return the name server addresses, or the HTTP endpoint that lists them. UsageError.

        '': [client] namesrv_domain is set, or no source sets addresses and is_default_used is False.
        """
        text = self._top("namesrv", flag)
        if not text and self._table("client").get("namesrv_domain"):
            return ""
        if not text and is_default_used:
            from mqtrail.net import NAMESRV_DEFAULT

            return NAMESRV_DEFAULT
        if text and not re.match(r"https?://[^/]+/.", text):
            namesrv_addresses(text)
        return text

    def data(self, flag: Path | None) -> Path:
        """Return the data folder of `up`."""
        return Path(self._top("data", None if flag is None else str(flag)) or DATA_DEFAULT).expanduser()

    def lake(self, flag: str | None) -> LakePath | None:
        """Return the lake's folder or prefix, None if no source sets it. LakeUnsupported."""
        text = self._top("lake", flag)
        if not text:
            return None
        if ":/" not in text:  # `place_of` would import the lake
            return Path(text).expanduser()
        from mqtrail.lake import place_of

        return place_of(text)

    def lake_to_read(self, flag: str | None) -> LakePath:
        """Return the lake that a command reads. LakeUnsupported; UsageError: no source sets it."""
        folder = self.lake(flag)
        if folder is None:
            raise UsageError("found no --lake: pass the folder that `mqtrail pipeline` writes")
        return folder

    def room(
        self, name: str, *layers: Layer, below: Layer | None = None, fixed: Mapping[str, object] | None = None
    ) -> Any:
        """Return the config object of a table of ROOMS. Precedence: later layers, earlier layers, the file, `below`.

        fixed: fields that are not settings, as they are.
        """
        cls = config_class(name)
        sourced: dict[str, tuple[str, object]] = {}
        table = Layer(f"{self.path}, [{name}]", self._table(name))
        secrets = {
            key: value for (of, key), one in SECRETS.items() if of == name and (value := self.environment.get(one))
        }
        for layer in (*([below] if below else ()), table, Layer("environment", secrets), *layers):
            sourced |= {key: (f"{layer.where} {key}", value) for key, value in layer.values.items()}
        if name == "client":
            fixed = {"credentials": self.credentials(), "tls": self.tls("client"), **(fixed or {})}
        return build(cls, sourced, fixed)

    def credentials(self) -> Any:
        """Return the clients' Credentials from the environment, otherwise from [credentials]; None without any."""
        found = self.room("credentials")
        return found if found.access_key else None

    def tls(self, side: str, *layers: Layer, file: Path | None = None) -> Any:
        """Return the TLS settings of a side (client or server). Its table overrides tls_config (a tls.properties)."""
        from mqtrail.net import read_tls_properties

        below = None
        path = self._top("tls_config", None if file is None else str(file))
        if path:
            properties = read_tls_properties(_text_of(Path(path).expanduser(), "tls.properties"))
            if "key_password" in (*properties.server, *properties.client):
                warn_if_open_to_others(Path(path).expanduser())
            below = Layer(path, properties.server if side == "server" else properties.client)
            if side == "server":
                for note in properties.notes:
                    warn(f"{path}: {note}")
        return self.room("tls_server" if side == "server" else "tls", *layers, below=below)

    def spark_conf(self) -> dict[str, str]:
        """Return the table [spark.conf]: Spark's own settings. UsageError."""
        self._table("spark")
        table = self.values.get("spark", {}).get("conf", {})
        if not isinstance(table, Mapping):
            raise UsageError(f"{self.path}: found conf = a {type(table).__name__} in [spark], expected [spark.conf]")
        return {key: str(value) for key, value in table.items()}

    def client(self, name: str, *layers: Layer) -> Any:
        """Return a ProducerConfig or ConsumerConfig with its shared parts ([client], [trace])."""
        whole = self.room(name, *layers)
        return dataclasses.replace(whole, instance=self.room("client"), trace=self.room("trace"))

    def _table(self, name: str) -> Mapping[str, Any]:
        table = self.values.get(name, {})
        if not isinstance(table, Mapping):
            shown = table if isinstance(table, int | float) else f"a {type(table).__name__}"  # it may be a secret
            raise UsageError(f"{self.path}: found {name} = {shown}, expected a table [{name}]")
        return {key: value for key, value in table.items() if (name, key) != ("spark", "conf")}

    def _top(self, key: str, flag: str | None) -> str:
        if flag:
            return flag
        if variable := self.environment.get(ENVIRONMENT.get(key, ""), ""):
            return variable
        value = self.values.get(key, "")
        if not isinstance(value, str):
            raise UsageError(f"{self.path}: found {key} = {value!r}, expected a string")
        return value


def load(path: Path | None = None, environment: Mapping[str, str] | None = None) -> Config:
    """Read the file (the default one only if it exists) and keep the environment. UsageError."""
    environ = os.environ if environment is None else environment
    chosen = path or Path(FILE_DEFAULT)
    if not chosen.exists():
        if path is not None:
            raise UsageError(
                f"found no settings file {path}: expected a TOML file, see docs/reference/settings.md"
            ) from None
        return Config(environment=environ)
    values = toml_of(chosen, "settings file")
    if unknown := sorted(set(values) - set(TOP_KEYS) - set(ROOMS)):
        known = ", ".join((*TOP_KEYS, *(f"[{name}]" for name in ROOMS)))
        raise UsageError(f"settings file {chosen}: found {unknown[0]!r}, expected {known}")
    found = Config(values, chosen, environ)
    if any(_is_secret(key, found._table(name).get(key, "")) for name, key in SECRETS):
        warn_if_open_to_others(chosen)
    return found


def toml_of(path: Path, kind: str) -> dict[str, Any]:
    """Return the values of a TOML file. kind: what the file is, for errors. UsageError."""
    import tomllib  # for most commands there is no file

    try:
        return tomllib.loads(_text_of(path, kind))
    except (ValueError, RecursionError) as error:  # also of numbers with thousands of digits, and of deep nesting
        raise UsageError(f"{kind} {path} is not TOML: {error}") from None


def operator_token(file: Path | None, environment: Mapping[str, str] | None = None) -> str | None:
    """Return the token of a file, else of the environment; None: there is none. UsageError."""
    if file is None:
        return (os.environ if environment is None else environment).get(OPERATOR_TOKEN) or None
    text = _text_of(file, "token file").strip()
    if not text or not text.isascii() or not text.isprintable():
        raise UsageError(
            f"token file {file}: found no token, expected one line of ASCII, as `mqtrail pmq token` prints"
        )
    warn_if_open_to_others(file)
    return text


def binlog_password(file: Path | None, environment: Mapping[str, str] | None = None) -> str:
    """Return the password of the first line of a file, else of the environment; '': there is none. UsageError."""
    if file is None:
        return (os.environ if environment is None else environment).get(BINLOG_PASSWORD, "")
    text = _text_of(file, "password file")
    warn_if_open_to_others(file)
    return text.partition("\n")[0].rstrip("\r")


def kafka_settings_text(file: Path) -> str:
    """Return the text of a file with settings of Kafka, which may have a password. UsageError."""
    text = _text_of(file, "Kafka settings file")
    warn_if_open_to_others(file)
    return text


def user_passwords(file: Path) -> dict[str, str]:
    """Return the passwords of a file with lines NAME=PASSWORD. UsageError."""
    found = {}
    warn_if_open_to_others(file)
    for number, line in enumerate(_text_of(file, "password file").splitlines(), 1):
        if line.strip() and not line.startswith("#"):
            name, equals, password = line.partition("=")
            if not (name and equals and password):
                raise UsageError(f"password file {file}: found no NAME=PASSWORD in line {number}, expected it")
            found[name] = password
    return found


def _is_secret(key: str, value: object) -> bool:
    """Return whether a setting of SECRETS needs protection: a name does not, nor does a URL without a password."""
    urls = ("store_url", "store_nodes", "store_replicas")
    return bool(value) and key != "access_key" and (key not in urls or has_password(str(value)))


def has_password(url: str) -> bool:
    """Return whether the URL of a database has a password."""
    return PASSWORD_IN_URL.search(url) is not None


def warn_if_open_to_others(path: Path) -> None:
    """Print a warning if other users can read or write a file with secrets."""
    from mqtrail.net import mode_open_to_others

    if mode := mode_open_to_others(path):
        warn(
            f"{path} contains secrets, and other users can read or change it: found mode {mode}, expected "
            f"600 (chmod 600 {path})"
        )


def _text_of(path: Path, kind: str) -> str:
    try:
        return path.read_text("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(
            f"{kind} {path} cannot be read: {error}: check its path and permissions, and that it is UTF-8 text"
        ) from error


def namesrv_addresses(text: str) -> tuple[str, ...]:
    """Return the addresses of `host:port;host:port`. UsageError."""
    from mqtrail.net import parse_namesrv

    try:
        return parse_namesrv(text, required=False)
    except ValueError as error:
        raise UsageError(str(error)) from None


def config_class(table: str) -> type[Any]:
    """Return the config class that a table of ROOMS fills."""
    module, name = ROOMS[table]
    found: type[Any] = getattr(importlib.import_module(module), name)
    return found


def build(cls: type[T], sourced: Mapping[str, tuple[str, object]], fixed: Mapping[str, object] | None = None) -> T:
    """Return cls with fields set from texts or TOML values: field -> (source, value). UsageError."""
    hints = typing.get_type_hints(cls)
    known = settings_of(cls)
    values: dict[str, object] = dict(fixed or {})
    for name, (where, value) in sourced.items():
        if name not in known:
            raise UsageError(f"{where}: no such setting, expected {_nearest(name, list(known))}")
        values[name] = convert(value, hints[name], where, is_secret=known[name].secret)
    try:
        return cls(**values)
    except InvalidParameter as error:  # without the code, which is for replies
        raise UsageError(error.remark) from error
    except MQError as error:  # the config object rejects contradictory settings
        raise UsageError(str(error)) from error


def _nearest(name: str, names: list[str]) -> str:
    import difflib

    near = difflib.get_close_matches(name, names, n=3, cutoff=0.5)
    return " or ".join(near) if near else "one of " + ", ".join(names)


def convert(value: object, kind: Any, where: str, *, is_secret: bool = False) -> object:
    """Return a text or TOML value as a field's type. UsageError: its text has the found value unless it is secret."""
    try:
        if kind is Host:
            return _host(value)
        return msgspec.convert(_plain(value, kind), kind, strict=not isinstance(value, str), dec_hook=_decoded)
    except (ValueError, msgspec.ValidationError, MQError):
        shown = f"a {type(value).__name__}" if is_secret else repr(value)
        raise UsageError(f"{where}: found {shown}, expected {_expected(kind)}") from None


def _plain(value: object, kind: Any) -> object:
    """Prepare a value for msgspec: sizes become numbers, comma-separated texts lists, enum names their values."""

    if isinstance(kind, types.UnionType):
        if value is None or (isinstance(value, str) and value.lower() in ("none", "")):
            return None
        return _plain(value, typing.get_args(kind)[0])
    if typing.get_origin(kind) is tuple and isinstance(value, str):
        return [part.strip() for part in value.split(",")]
    if not isinstance(value, str):
        return value
    if kind is int and (match := _SIZE.fullmatch(value.strip())):
        return int(match[1]) * _SIZES[match[2].lower()]
    if isinstance(kind, type) and issubclass(kind, Enum):
        return next((one.value for one in kind if one.name == value.strip().upper()), value)
    return value if kind is str else value.strip()


def _host(value: object) -> Host:
    ip, _, port = str(value).strip().rpartition(":")
    return Host(ip.strip("[]"), int(port))


def _decoded(kind: Any, value: object) -> object:
    if kind is not Path or not isinstance(value, str):
        raise ValueError(value)
    return Path(value).expanduser()


def _expected(kind: Any) -> str:
    if isinstance(kind, types.UnionType):
        return _expected(typing.get_args(kind)[0])
    if typing.get_origin(kind) is tuple:
        return f"a list, each entry {_expected(typing.get_args(kind)[0])}"
    if typing.get_origin(kind) is Mapping:
        return f"a table, each value {_expected(typing.get_args(kind)[1])}"
    if kind is bool:
        return "true or false"
    if kind is int:
        return "a whole number, optionally with KiB, MiB or GiB"
    if isinstance(kind, type) and issubclass(kind, Enum):
        return "one of " + ", ".join(member.name for member in kind)
    return {float: "a number", Host: "ip:port", Path: "a path"}.get(kind, "a string")


def assignments(texts: Sequence[str], flag: str) -> dict[str, object]:
    """Return `field=value` texts of a repeatable flag as field -> text. UsageError."""
    found: dict[str, object] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name.strip():
            raise UsageError(f"{flag}: found {text!r:.40}, expected field=value")
        found[name.strip()] = value
    return found
