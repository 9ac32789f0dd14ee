"""Settings of accounts: the table [console]."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import urlsplit

from mqtrail.wire import MQError, check_settings, setting

from .model import Grant, InvalidAccount


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessConfig:
    """Who may open the console, and how it is reached. Times are ms."""

    accounts: bool = setting(False, "require a log-in, also on a loopback address and before there is a user")
    url: str = setting("", "address that users open, `https://HOST[:PORT]`; needed by `--host` and OIDC")
    tls_certificate: str = setting("", "PEM file of the certificate; empty: no TLS, or that of a proxy")
    tls_key: str = setting("", "PEM file with the key of `tls_certificate`")
    users: str = setting("", "file of the users; empty: `DATA/console-users.json`")
    session_ms: int = setting(12 * 3_600_000, "time after which a user logs in again", least=1)
    session_idle_ms: int = setting(
        2 * 3_600_000,
        "time without a request after which a user logs in again; an open page does not count as one",
        least=1,
    )
    proxy_header: str = setting("", "header in which a proxy names the user; empty: there is no such proxy")
    proxy_addresses: tuple[str, ...] = setting(
        (), "IP addresses of the proxies whose `proxy_header` and `X-Forwarded-For` count"
    )
    oidc_issuer: str = setting("", "OpenID Connect provider; its `/.well-known/openid-configuration` is read")
    oidc_client_id: str = setting("", "name of the console at the provider")
    oidc_client_secret: str = setting(
        "", "its secret; better in the variable `MQTRAIL_OIDC_CLIENT_SECRET`", secret=True
    )
    oidc_scope: str = setting("openid profile email", "scopes requested from the provider; some need `groups` too")
    oidc_name: str = setting("preferred_username", "claim that names the user; it must be one that users cannot choose")
    oidc_groups: str = setting("groups", "claim with the user's groups")
    group_roles: tuple[str, ...] = setting((), "roles by group of the provider, each `GROUP=ROLE`")
    default_roles: tuple[str, ...] = setting(
        (),
        "roles of users of the provider or the proxy who have none by account or group; empty: such users are refused",
    )

    def __post_init__(self) -> None:
        """Reject contradictory settings."""
        address = urlsplit(self.url)
        if self.url and (address.scheme not in ("http", "https") or not address.hostname):
            raise MQError(f"[console] url: found {self.url!r}, expected https://HOST[:PORT]")
        for first, second in (
            ("tls_certificate", "tls_key"),
            ("tls_key", "tls_certificate"),
            ("proxy_header", "proxy_addresses"),
            ("oidc_issuer", "oidc_client_id"),
            ("oidc_issuer", "url"),
        ):
            if getattr(self, first) and not getattr(self, second):
                raise MQError(f"[console]: found {first} without {second}, expected both")
        check_settings(self)
        self.grants_of_groups([])
        for text in self.default_roles:
            Grant.parse(text)

    @property
    def is_secure(self) -> bool:
        """Whether users reach it by HTTPS, so that browsers send cookies by HTTPS alone."""
        return self.url.startswith("https:") or bool(self.tls_certificate)

    @property
    def hosts(self) -> frozenset[str]:
        """The names besides those of this machine that requests may address."""
        name = urlsplit(self.url).hostname
        return frozenset({name} if name else ())

    def grants_of_groups(self, groups: list[str]) -> tuple[Grant, ...]:
        """Return the roles of a user's groups. InvalidAccount."""
        found = []
        for text in self.group_roles:
            group, equals, role = text.rpartition("=")
            if not equals or not group:
                raise InvalidAccount(f"[console] group_roles: found {text!r}, expected GROUP=ROLE")
            grant = Grant.parse(role)
            if group in groups:
                found.append(grant)
        return tuple(found)

    def named_grants(self) -> tuple[Grant, ...]:
        """Return the roles that the settings name: those of all groups, and those of users without an account."""
        of_groups = (Grant.parse(text.rpartition("=")[2]) for text in self.group_roles)
        return (*of_groups, *self.defaults())

    def defaults(self) -> tuple[Grant, ...]:
        """Return the roles of users without an account."""
        return tuple(map(Grant.parse, self.default_roles))
