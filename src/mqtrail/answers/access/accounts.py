"""The users of a console and their API tokens: a JSON file that only its owner can read.

    {"version": 1, "users": {"ann": {"roles": ["admin"], "password": "$argon2id$…", "epoch": "…", "tokens": {…}}}}

Passwords are kept as Argon2id hashes, tokens as SHA-256: a token has 256 random bits, too many to guess.
"""

from __future__ import annotations

import hashlib
import json
import secrets
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from argon2 import PasswordHasher
from argon2.exceptions import InvalidHashError, VerificationError

from mqtrail.net import replace_file, wait_for_lock
from mqtrail.wire import MQError

from .model import NAME, Grant, InvalidAccount

PASSWORD_SIZE_MIN: Final = 12  # characters; NIST SP 800-63B asks for 8 at least, and for length instead of rules
PASSWORD_SIZE_MAX: Final = 1_000
USERS_MAX: Final = 10_000
TOKENS_MAX: Final = 50  # of a user
TOKEN_PREFIX: Final = "mqt_"
_HASHER: Final = PasswordHasher()  # Argon2id, 64 MiB, 3 passes: the library's choice of RFC 9106


class AccountsFailed(MQError):
    """The file of the users cannot be read or written."""


@dataclass(frozen=True, slots=True)
class ApiToken:
    """An API token without its secret. ends_ms: 0: never."""

    name: str
    digest: str = field(repr=False)
    made_ms: int
    ends_ms: int


@dataclass(frozen=True, slots=True)
class UserAccount:
    """A user. password: its hash; '' for a user of OIDC or a proxy. epoch: another one ends all sessions."""

    name: str
    grants: tuple[Grant, ...]
    password: str = field(repr=False)
    epoch: str
    tokens: tuple[ApiToken, ...] = field(default=(), repr=False)


class Accounts:
    """Reads and changes the file. Thread safe, also with other processes that use this class on the file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = threading.Lock()
        self._known: dict[str, UserAccount] = {}
        self._read_at: tuple[int, int, int] | None = None

    def all(self) -> Mapping[str, UserAccount]:
        """Return the users by name, as the file has them now. AccountsFailed."""
        with self._lock, self._errors("read"):
            return self._load()

    def find(self, name: str) -> UserAccount | None:
        """Return a user. AccountsFailed."""
        return self.all().get(name)

    def verify(self, name: str, password: str) -> UserAccount | None:
        """Return the user with this name and password. An unknown name takes as long as a wrong password."""
        account = self.find(name)
        known = account.password if account is not None and account.password else _nobody()
        try:
            _HASHER.verify(known, password[:PASSWORD_SIZE_MAX])
        except (VerificationError, InvalidHashError):
            return None
        return account if account is not None and account.password else None

    def owner_of(self, token: str, now_ms: int) -> tuple[UserAccount, ApiToken] | None:
        """Return whose API token this is; None: it is not known, or has expired."""
        digest = digest_of(token)
        for account in self.all().values():
            for one in account.tokens:
                if secrets.compare_digest(one.digest, digest) and (not one.ends_ms or now_ms < one.ends_ms):
                    return account, one
        return None

    def add(self, name: str, grants: tuple[Grant, ...], password: str, *, is_first: bool = False) -> None:
        """Add a user. password: '' for a user of OIDC or a proxy. is_first: only if there is no other."""
        if not NAME.fullmatch(name):
            raise InvalidAccount(
                f"found the name {name[:200]!r}, expected 1 to 128 letters, digits or any of . @ + - _"
            )
        hashed = hash_of(password) if password else ""

        def change(users: dict[str, UserAccount]) -> None:
            if name in users or (is_first and users):
                raise InvalidAccount(
                    f"found user {name!r} already, expected a new name" if name in users else "found users already"
                )
            if len(users) >= USERS_MAX:
                raise InvalidAccount(f"found {USERS_MAX} users, expected fewer")
            users[name] = UserAccount(name, grants, hashed, secrets.token_hex(16))

        self._change(change)

    def remove(self, name: str) -> None:
        """Remove a user; its sessions and tokens end. InvalidAccount: there is none."""

        def change(users: dict[str, UserAccount]) -> None:
            del users[_existing(users, name).name]

        self._change(change)

    def set_password(self, name: str, password: str) -> None:
        """Set a user's password; its sessions end. InvalidAccount."""
        hashed = hash_of(password)

        def change(users: dict[str, UserAccount]) -> None:
            old = _existing(users, name)
            users[name] = UserAccount(name, old.grants, hashed, secrets.token_hex(16), old.tokens)

        self._change(change)

    def set_grants(self, name: str, grants: tuple[Grant, ...]) -> None:
        """Set a user's roles; they hold at once. InvalidAccount."""

        def change(users: dict[str, UserAccount]) -> None:
            old = _existing(users, name)
            users[name] = UserAccount(name, grants, old.password, old.epoch, old.tokens)

        self._change(change)

    def add_token(self, name: str, token_name: str, now_ms: int, ends_ms: int) -> str:
        """Create an API token of a user, and return it: only its hash is kept. InvalidAccount."""
        token = TOKEN_PREFIX + secrets.token_urlsafe(32)

        def change(users: dict[str, UserAccount]) -> None:
            old = _existing(users, name)
            if not NAME.fullmatch(token_name) or any(one.name == token_name for one in old.tokens):
                raise InvalidAccount(
                    f"found the token name {token_name[:200]!r}, expected a new one of letters, digits, . @ + - _"
                )
            if len(old.tokens) >= TOKENS_MAX:
                raise InvalidAccount(f"found {TOKENS_MAX} tokens of {name!r}, expected fewer: remove one")
            made = ApiToken(token_name, digest_of(token), now_ms, ends_ms)
            users[name] = UserAccount(name, old.grants, old.password, old.epoch, (*old.tokens, made))

        self._change(change)
        return token

    def remove_token(self, name: str, token_name: str) -> None:
        """Remove an API token. InvalidAccount: there is none."""

        def change(users: dict[str, UserAccount]) -> None:
            old = _existing(users, name)
            kept = tuple(one for one in old.tokens if one.name != token_name)
            if len(kept) == len(old.tokens):
                raise InvalidAccount(f"found no token {token_name!r} of {name!r}")
            users[name] = UserAccount(name, old.grants, old.password, old.epoch, kept)

        self._change(change)

    def _change(self, change: Callable[[dict[str, UserAccount]], None]) -> None:
        with self._lock, self._errors("write"), wait_for_lock(Path(f"{self.path}.lock")):
            users = dict(self._load())
            change(users)
            self._save(users)
            self._read_at = None

    def _load(self) -> Mapping[str, UserAccount]:
        try:
            found = self.path.stat()
        except FileNotFoundError:
            self._known, self._read_at = {}, None
            return self._known
        at = (found.st_mtime_ns, found.st_ino, found.st_size)
        if at != self._read_at:
            if found.st_mode & 0o077:
                raise AccountsFailed(f"{self.path} can be read or changed by other users: run chmod 600 {self.path}")
            self._known = _read(json.loads(self.path.read_text("utf-8")))
            self._read_at = at
        return self._known

    def _save(self, users: Mapping[str, UserAccount]) -> None:
        document = {"version": 1, "users": {name: _written(one) for name, one in sorted(users.items())}}
        replace_file(self.path, json.dumps(document, indent=1).encode())

    @contextmanager
    def _errors(self, verb: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise AccountsFailed(f"cannot {verb} the users' file {str(self.path)!r}: {error.strerror}") from None
        except (ValueError, KeyError, TypeError, AttributeError):
            raise AccountsFailed(
                f"{self.path}: found damage, expected a file of users: restore it from a copy"
            ) from None


def hash_of(password: str) -> str:
    """Return the Argon2id hash of a new password. InvalidAccount: it is too short or too long."""
    if not PASSWORD_SIZE_MIN <= len(password) <= PASSWORD_SIZE_MAX:
        raise InvalidAccount(
            f"found a password of {len(password)} characters, expected {PASSWORD_SIZE_MIN} to {PASSWORD_SIZE_MAX}"
        )
    return _HASHER.hash(password)


def digest_of(token: str) -> str:
    """Return what is kept of a token."""
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).hexdigest()


_NOBODY: list[str] = []


def _nobody() -> str:
    """Return the hash of a random password, which is not kept."""
    if not _NOBODY:
        _NOBODY.append(_HASHER.hash(secrets.token_hex(16)))
    return _NOBODY[0]


def _existing(users: Mapping[str, UserAccount], name: str) -> UserAccount:
    if name not in users:
        raise InvalidAccount(
            f"found no user {name[:200]!r}, expected one of: {', '.join(sorted(users)[:20]) or 'none'}"
        )
    return users[name]


def _read(found: Any) -> dict[str, UserAccount]:
    if found["version"] != 1:
        raise ValueError("another version")
    return {
        str(name): UserAccount(
            str(name),
            tuple(Grant.parse(text) for text in one["roles"]),
            str(one["password"]),
            str(one["epoch"]),
            tuple(
                ApiToken(str(token), str(each["sha256"]), int(each["made_ms"]), int(each["ends_ms"]))
                for token, each in one["tokens"].items()
            ),
        )
        for name, one in found["users"].items()
    }


def _written(one: UserAccount) -> dict[str, Any]:
    return {
        "roles": [str(grant) for grant in one.grants],
        "password": one.password,
        "epoch": one.epoch,
        "tokens": {
            each.name: {"sha256": each.digest, "made_ms": each.made_ms, "ends_ms": each.ends_ms} for each in one.tokens
        },
    }
