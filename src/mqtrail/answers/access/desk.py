"""Who sends a request: by a session, an API token, or a proxy. Log-ins, their limits, and their record."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Final, TypeVar

from mqtrail.clock import now_ms

from ..changes import Actor, AuditLog
from .accounts import Accounts, UserAccount, digest_of
from .config import AccessConfig
from .model import Grant, InvalidAccount, NotAllowed, Person, PersonRole, SignedOut, Visitor
from .sessions import Attempts, Session, Sessions

T = TypeVar("T")
TRIES: Final = (("name", 50), ("address", 30), ("both", 5))  # failed tries within 15 minutes
FIRST_MS: Final = 3_600_000  # that the first admin's token can be used
HASHES_AT_ONCE: Final = 2  # each takes 64 MiB
HASHES_WAITING_MAX: Final = 20


class TooManyTries(InvalidAccount):
    """Too many log-ins of a user or an address failed. wait_s: for how long further ones are refused."""

    def __init__(self, wait_s: int) -> None:
        super().__init__(f"found too many failed log-ins: try again in {wait_s} s")
        self.wait_s = wait_s


class AccessDesk:
    """The accounts of a console. Call it from one event loop."""

    def __init__(self, config: AccessConfig, accounts: Accounts, audit: AuditLog) -> None:
        self.config = config
        self.accounts = accounts
        self._audit = audit
        self._sessions = Sessions(config.session_ms, config.session_idle_ms)
        self._attempts = Attempts()
        self._hashing = ThreadPoolExecutor(HASHES_AT_ONCE, "mqtrail-password")
        self._hashing_count = 0
        self._first = ""
        self._first_end_ms = 0

    def first_token(self) -> str:
        """Return a token that makes the first admin once, within an hour; '' if there are users."""
        if self.accounts.all():
            return ""
        token = secrets.token_urlsafe(18)
        self._first, self._first_end_ms = digest_of(token), now_ms() + FIRST_MS
        return token

    def named_grants(self) -> tuple[Grant, ...]:
        """Return the roles of all users and of the settings. AccountsFailed."""
        return (*(grant for one in self.accounts.all().values() for grant in one.grants), *self.config.named_grants())

    def address_of(self, peer: str, forwarded: str) -> str:
        """Return the address of the client: of a trusted proxy's client it is the last one that the proxy names.

        forwarded: all headers X-Forwarded-For, joined by commas: a proxy may add one of its own.
        """
        last = forwarded.rpartition(",")[2].strip()
        return last if last and peer in self.config.proxy_addresses else peer

    def visitor(self, peer: str, address: str, *, cookie: str, bearer: str, proxied: str) -> Visitor | None:
        """Return who sends a request with these credentials; None: no known user. AccountsFailed."""
        at_ms = now_ms()
        if bearer:
            return self._of_token(bearer, address)
        session = self._sessions.find(cookie, at_ms) if cookie else None
        if session is not None:
            visitor = Visitor(partial(self._person_of, session), address, session.csrf, is_ambient=True)
        elif proxied and peer in self.config.proxy_addresses:
            visitor = Visitor(partial(self._named, proxied), address, is_ambient=True)
        else:
            return None
        try:
            visitor.now()
        except SignedOut:
            return None
        return visitor

    def _of_token(self, token: str, address: str) -> Visitor | None:
        def person() -> Person:
            found = self.accounts.owner_of(token, now_ms())
            if found is None:
                raise SignedOut("the API token is not valid any more")
            return Person(found[0].name, found[0].grants)

        wait_ms = self._attempts.wait_ms(f"token {address}", 30, now_ms())
        if wait_ms:
            raise TooManyTries(wait_ms // 1_000 + 1)
        try:
            person()
        except SignedOut:
            self._attempts.add(f"token {address}", now_ms())
            return None
        return Visitor(person, address)

    def _person_of(self, session: Session) -> Person:
        account = self.accounts.find(session.name)
        epoch = account.epoch if account is not None else ""
        if self._sessions.is_over(session, now_ms()) or epoch != session.epoch:
            raise SignedOut("the session is over: log in again")
        if session.grants is not None:
            return Person(session.name, session.grants)
        return Person(session.name, account.grants if account is not None else ())

    def _named(self, name: str) -> Person:
        """Return the person that a proxy names."""
        account = self.accounts.find(name)
        grants = account.grants if account is not None else self.config.defaults()
        if not grants:
            raise SignedOut("no account has this name, and [console] default_roles is empty")
        return Person(name[:128], grants)

    async def log_in(self, name: str, password: str, address: str) -> str:
        """Begin a session and return its token. InvalidAccount: wrong; TooManyTries."""
        name = name[:128]  # what follows would be another name to count for
        keys = {"name": f"name {name}", "address": f"address {address}", "both": f"both {name} {address}"}
        wait_ms = max(self._attempts.wait_ms(keys[key], most, now_ms()) for key, most in TRIES)
        if wait_ms or self._hashing_count >= HASHES_WAITING_MAX:
            raise TooManyTries(max(1, wait_ms // 1_000))
        at_ms = now_ms()
        for key in keys.values():  # before the password is checked, so that tries at the same time count
            self._attempts.add(key, at_ms)
        account = await self._in_thread(partial(self.accounts.verify, name, password))
        who = Actor(name, address, "page")
        if account is None:
            await self._noted(who, "log-in", "refused: wrong name or password")
            raise InvalidAccount("wrong name or password")
        self._attempts.forget(keys["both"])
        for key in ("name", "address"):  # other failures still count: many users have the address of a proxy
            self._attempts.take_back(keys[key], at_ms)
        return await self.begin(account, None, address)

    async def begin(self, account: UserAccount, grants: tuple[Grant, ...] | None, address: str) -> str:
        """Begin a session of an authenticated user; return its token."""
        token = self._sessions.begin(account.name, account.epoch, grants, now_ms())
        await self._noted(Actor(account.name, address, "page"), "log-in", "")
        return token

    async def log_in_by_provider(self, name: str, groups: list[str], address: str) -> str:
        """Begin a session of a user that the OpenID provider names; return its token. NotAllowed: no role."""
        account = self.accounts.find(name)
        grants = self.config.grants_of_groups(groups) + (account.grants if account is not None else ())
        grants = grants or self.config.defaults()
        if not grants:
            await self._noted(Actor(name[:128], address, "page"), "log-in", "refused: no role")
            raise NotAllowed(f"user {name[:128]!r} has no role here: ask an administrator of the console")
        return await self.begin(account or UserAccount(name[:128], (), "", ""), grants, address)

    async def make_first(self, token: str, name: str, password: str, address: str) -> str:
        """Make the first admin, and begin its session. InvalidAccount."""
        wait_ms = self._attempts.wait_ms(f"first {address}", 10, now_ms())
        if wait_ms:
            raise TooManyTries(wait_ms // 1_000 + 1)
        self._attempts.add(f"first {address}", now_ms())
        if (
            not self._first
            or now_ms() >= self._first_end_ms
            or not secrets.compare_digest(digest_of(token), self._first)
        ):
            raise InvalidAccount(
                "found another token, expected the one that the console printed at its start, within an hour"
            )
        grants = (Grant(PersonRole.ADMIN),)
        await self._in_thread(partial(self.accounts.add, name, grants, password, is_first=True))
        self._first = ""
        await self._noted(Actor(name, address, "page"), "add-user", "")
        account = self.accounts.find(name)
        assert account is not None
        return await self.begin(account, None, address)

    async def set_password(self, name: str, old: str, new: str, address: str) -> str:
        """Change a user's own password, end its sessions, and begin one. InvalidAccount, TooManyTries."""
        token = await self.log_in(name, old, address)
        self._sessions.end(token)
        await self._in_thread(partial(self.accounts.set_password, name, new))
        await self._noted(Actor(name, address, "page"), "set-password", "")
        account = self.accounts.find(name)
        assert account is not None
        return await self.begin(account, None, address)

    async def add_token(self, visitor: Visitor, token_name: str, ends_ms: int) -> str:
        """Make an API token of the person's own account. InvalidAccount."""
        name = visitor.now().name
        token = self.accounts.add_token(name, token_name, now_ms(), ends_ms)
        await self._noted(Actor(name, visitor.address, "page"), "add-token", "", token=token_name)
        return token

    async def remove_token(self, visitor: Visitor, token_name: str) -> None:
        """Remove an API token of the person's own account. InvalidAccount."""
        name = visitor.now().name
        self.accounts.remove_token(name, token_name)
        await self._noted(Actor(name, visitor.address, "page"), "remove-token", "", token=token_name)

    async def log_out(self, cookie: str, visitor: Visitor) -> None:
        """End a session."""
        who = Actor(visitor.now().name, visitor.address, "page")
        self._sessions.end(cookie)
        await self._noted(who, "log-out", "")

    async def _noted(self, actor: Actor, action: str, error: str, **parameters: str) -> None:
        await asyncio.to_thread(self._audit.note, actor, action, parameters, error)

    async def _in_thread(self, ask: Callable[[], T]) -> T:
        """Hash passwords off the event loop, a few at once."""
        self._hashing_count += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._hashing, ask)
        finally:
            self._hashing_count -= 1

    def close(self) -> None:
        """End the threads."""
        self._hashing.shutdown(wait=False, cancel_futures=True)
