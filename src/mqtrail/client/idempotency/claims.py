"""Claims: who works on a key, and with what result. The contract of the stores, and the one in memory.

(none) --claim--> TAKEN --complete--> DONE --keep_ms--> (none)
                    |  \\--release--> (none)
                    \\--lease_ms--> TAKEN by the next claim, with a higher token
"""

import itertools
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Final, NamedTuple, Protocol

from ..core import ClientError

EVICTED_AT_ONCE: Final = 4  # expired keys that a claim removes on its way: more than it adds


class ClaimState(Enum):
    """What a store answers to a claim."""

    TAKEN = "TAKEN"  # by this caller
    BUSY = "BUSY"  # another caller has it
    DONE = "DONE"


class KeyClaim(NamedTuple):
    """A store's answer.

    token: of a taken claim, higher than those of all earlier claims of the key that the store remembers. owner: proves
    this claim to `complete` and `release`. left_ms: of a busy key, until the other's lease ends. result: of a done key.
    """

    state: ClaimState
    token: int = 0
    owner: str = ""
    left_ms: int = 0
    result: bytes = b""


class Claims(Protocol):
    """A store of claims. id: 64 hexadecimal digits. Any exception means that the store is down."""

    async def claim(self, id: str, lease_ms: int, keep_ms: int) -> KeyClaim:
        """Take the key for lease_ms, if no other lease is running and it is not done."""
        ...

    async def complete(self, id: str, claim: KeyClaim, result: bytes, keep_ms: int) -> bool:
        """Mark the key as done for keep_ms. False: another claim was taken since, and nothing changed."""
        ...

    async def release(self, id: str, claim: KeyClaim) -> None:
        """Give the key back, unless another claim was taken since."""
        ...


class ClaimsFull(ClientError):
    """The store holds as many running claims as it may."""


@dataclass(slots=True)
class _Held:
    owner: str
    token: int
    until_ms: int  # of the lease; of a done key: of its memory
    result: bytes | None = None  # None: not done


class MemoryClaims:
    """Claims in this process; gone at its end, and unknown to other members of the group. Thread safe.

    keys_max: keys held. At that number the oldest done key is forgotten, so that a later repeat of its message has an
    effect again; if all are being worked on, a claim raises ClaimsFull. clock_ms: a clock that is never set back.
    """

    def __init__(self, keys_max: int = 100_000, *, clock_ms: Callable[[], int] | None = None) -> None:
        if keys_max < 1:
            raise ClientError(f"found keys_max {keys_max}, expected at least 1")
        self.keys_max = keys_max
        self._clock_ms = clock_ms or (lambda: time.monotonic_ns() // 1_000_000)
        self._held: OrderedDict[str, _Held] = OrderedDict()  # done ones in the order of their ends
        self._tokens = itertools.count(1)
        self._lock = threading.Lock()

    def __len__(self) -> int:
        """Return how many keys it holds."""
        return len(self._held)

    async def claim(self, id: str, lease_ms: int, keep_ms: int) -> KeyClaim:
        """Take the key; see Claims. Raises ClaimsFull."""
        now = self._clock_ms()
        with self._lock:
            held = self._held.get(id)
            if held is not None and held.until_ms > now:
                if held.result is None:
                    return KeyClaim(ClaimState.BUSY, left_ms=held.until_ms - now)
                return KeyClaim(ClaimState.DONE, result=held.result)
            self._held.pop(id, None)
            self._make_room(now)
            token = next(self._tokens)
            self._held[id] = _Held(str(token), token, now + lease_ms)
            return KeyClaim(ClaimState.TAKEN, token, str(token))

    async def complete(self, id: str, claim: KeyClaim, result: bytes, keep_ms: int) -> bool:
        """Mark the key as done; see Claims."""
        with self._lock:
            held = self._held.get(id)
            if held is None or held.owner != claim.owner:
                return False
            held.result, held.until_ms = result, self._clock_ms() + keep_ms
            self._held.move_to_end(id)
            return True

    async def release(self, id: str, claim: KeyClaim) -> None:
        """Give the key back; see Claims."""
        with self._lock:
            held = self._held.get(id)
            if held is not None and held.owner == claim.owner:
                del self._held[id]

    def _make_room(self, now: int) -> None:
        """Forget some keys whose time is over, and a done one if the store is still full."""
        for id, held in list(itertools.islice(self._held.items(), EVICTED_AT_ONCE)):
            if held.until_ms <= now:
                del self._held[id]
        if len(self._held) < self.keys_max:
            return
        oldest = next((id for id, held in self._held.items() if held.result is not None or held.until_ms <= now), None)
        if oldest is None:
            raise ClaimsFull(
                f"found {len(self._held)} keys that are being worked on, expected fewer than keys_max: raise it"
            )
        del self._held[oldest]
