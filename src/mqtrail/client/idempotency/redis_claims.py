"""Claims in Redis: one hash for each key, changed by scripts, so that each step is one round trip and atomic.

    <prefix><id>    token   number of claims so far        owner   of the latest claim
                    until   end of its lease, epoch ms     done    the result, in base64

Leases follow the server's clock. Every hash expires: after keep_ms if it is done, else after lease_ms + keep_ms.
"""

import base64
import hashlib
import inspect
import secrets
from typing import Any, NamedTuple, Protocol

from ..core import ClientError
from .claims import ClaimState, KeyClaim

_STATES = (ClaimState.TAKEN, ClaimState.BUSY, ClaimState.DONE)


class RedisClient(Protocol):
    """The part of `redis.asyncio.Redis` (package redis, extra `redis`) that is used."""

    def evalsha(self, sha: str, numkeys: int, *keys_and_args: Any) -> Any:
        """Run a script that the server knows; raise NoScriptError if it does not."""
        ...

    def eval(self, script: str, numkeys: int, *keys_and_args: Any) -> Any:
        """Run a script, and let the server know it."""
        ...


class _Script(NamedTuple):
    text: str
    sha: str

    @classmethod
    def of(cls, text: str) -> "_Script":
        return cls(text, hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest())


CLAIM = _Script.of("""
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local held = redis.call('HMGET', KEYS[1], 'done', 'until')
if held[1] then return {2, 0, held[1]} end
if held[2] and tonumber(held[2]) > now then return {1, tonumber(held[2]) - now, ''} end
local token = redis.call('HINCRBY', KEYS[1], 'token', 1)
redis.call('HSET', KEYS[1], 'until', string.format('%.0f', now + ARGV[1]), 'owner', ARGV[3])
redis.call('PEXPIRE', KEYS[1], ARGV[1] + ARGV[2])
return {0, token, ''}
""")
COMPLETE = _Script.of("""
if redis.call('HGET', KEYS[1], 'owner') ~= ARGV[1] then return 0 end
redis.call('HSET', KEYS[1], 'done', ARGV[2])
redis.call('HDEL', KEYS[1], 'owner', 'until')
redis.call('PEXPIRE', KEYS[1], ARGV[3])
return 1
""")
RELEASE = _Script.of("""
if redis.call('HGET', KEYS[1], 'owner') ~= ARGV[1] then return 0 end
return redis.call('HDEL', KEYS[1], 'owner', 'until')
""")


class RedisClaims:
    """Claims in a Redis server, shared by all members of a group.

    client: a `redis.asyncio.Redis`; its own settings decide timeouts, retries and the number of connections. prefix: of
    the names of its keys. The server must not evict keys (`maxmemory-policy noeviction`). What it loses in a crash or
    fail-over is forgotten: the effect of a repeat then happens again.
    """

    def __init__(self, client: RedisClient, *, prefix: str = "mqtrail:once:") -> None:
        self._prefix = prefix
        self._client = client

    async def claim(self, id: str, lease_ms: int, keep_ms: int) -> KeyClaim:
        """Take the key; see Claims. Raises the errors of the client."""
        owner = secrets.token_hex(8)
        state, number, result = await self._run(CLAIM, id, lease_ms, keep_ms, owner)
        match _STATES[state]:
            case ClaimState.TAKEN:
                return KeyClaim(ClaimState.TAKEN, int(number), owner)
            case ClaimState.BUSY:
                return KeyClaim(ClaimState.BUSY, left_ms=int(number))
            case ClaimState.DONE:
                return KeyClaim(ClaimState.DONE, result=base64.b64decode(result))

    async def complete(self, id: str, claim: KeyClaim, result: bytes, keep_ms: int) -> bool:
        """Mark the key as done; see Claims. Raises the errors of the client."""
        done = await self._run(COMPLETE, id, claim.owner, base64.b64encode(result).decode(), keep_ms)
        return bool(done)

    async def release(self, id: str, claim: KeyClaim) -> None:
        """Give the key back; see Claims. Raises the errors of the client."""
        await self._run(RELEASE, id, claim.owner)

    async def _run(self, script: _Script, id: str, *args: str | int) -> Any:
        key = self._prefix + id
        answer = self._client.evalsha(script.sha, 1, key, *args)
        if not inspect.isawaitable(answer):
            raise ClientError("found a blocking Redis client, expected redis.asyncio.Redis")
        try:
            return await answer
        except Exception as error:
            if type(error).__name__ != "NoScriptError":  # the package is not imported here
                raise
        return await self._client.eval(script.text, 1, key, *args)
