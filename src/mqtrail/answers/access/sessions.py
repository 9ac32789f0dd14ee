"""Sessions of logged-in users, kept in memory: a restart ends them. And bounds on how often a log-in may be tried.

Both take the time as an argument. Call them from one event loop.
"""

from __future__ import annotations

import secrets
from collections import OrderedDict, deque
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from .accounts import digest_of
from .model import Grant

SESSIONS_MAX: Final = 10_000
SESSIONS_OF_ONE_MAX: Final = 20
WINDOW_MS: Final = 15 * 60_000
KEYS_MAX: Final = 20_000


@dataclass(slots=True)
class Session:
    """One log-in. epoch: of the account then. grants: from OIDC, None: those of the account."""

    name: str
    epoch: str
    grants: tuple[Grant, ...] | None
    csrf: str
    began_ms: int
    used_ms: int
    is_ended: bool = False


class Sessions:
    """Sessions by the digest of their token, which only the browser has."""

    def __init__(self, session_ms: int, idle_ms: int) -> None:
        self._session_ms = session_ms
        self._idle_ms = idle_ms
        self._known: OrderedDict[str, Session] = OrderedDict()

    def begin(self, name: str, epoch: str, grants: tuple[Grant, ...] | None, now_ms: int) -> str:
        """Begin a session and return its token. A user's oldest session ends if there are too many."""
        own = [key for key, one in self._known.items() if one.name == name]
        if len(own) >= SESSIONS_OF_ONE_MAX:
            self._end(own[0])
        if len(self._known) >= SESSIONS_MAX:
            self._end(next(iter(self._known)))
        token = secrets.token_urlsafe(32)
        self._known[digest_of(token)] = Session(name, epoch, grants, secrets.token_urlsafe(24), now_ms, now_ms)
        return token

    def find(self, token: str, now_ms: int) -> Session | None:
        """Return the session of a token, and note that it was used; None: there is none, or it is over."""
        key = digest_of(token)
        found = self._known.get(key)
        if found is None:
            return None
        if self.is_over(found, now_ms):
            self._end(key)
            return None
        found.used_ms = now_ms
        return found

    def is_over(self, one: Session, now_ms: int) -> bool:
        """Return whether a session ended, or its time is over."""
        is_late = now_ms - one.began_ms >= self._session_ms or now_ms - one.used_ms >= self._idle_ms
        return one.is_ended or is_late

    def end(self, token: str) -> None:
        """End the session of a token."""
        self._end(digest_of(token))

    def _end(self, key: str) -> None:
        if (found := self._known.pop(key, None)) is not None:
            found.is_ended = True


class Attempts:
    """Counts failures by key within 15 minutes."""

    def __init__(self) -> None:
        self._failed: OrderedDict[str, deque[int]] = OrderedDict()

    def wait_ms(self, key: str, count_max: int, now_ms: int) -> int:
        """Return for how long the key may not try; 0: it may."""
        failed = self._failed.get(key, deque())
        while failed and now_ms - failed[0] >= WINDOW_MS:
            failed.popleft()
        return failed[-count_max] + WINDOW_MS - now_ms if len(failed) >= count_max else 0

    def add(self, key: str, now_ms: int) -> None:
        """Note a try that failed, or that is not known to have succeeded yet."""
        self._failed.setdefault(key, deque(maxlen=1_000)).append(now_ms)
        self._failed.move_to_end(key)
        if len(self._failed) > KEYS_MAX:
            self._failed.popitem(last=False)

    def take_back(self, key: str, at_ms: int) -> None:
        """Forget a try of that time: it succeeded."""
        with suppress(KeyError, ValueError):  # it is too old to be known
            self._failed[key].remove(at_ms)

    def forget(self, key: str) -> None:
        """Forget the failures of a key: it succeeded."""
        self._failed.pop(key, None)
