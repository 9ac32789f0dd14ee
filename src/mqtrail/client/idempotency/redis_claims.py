"""Claims in Redis: one hash for each key, changed by scripts, so that each step is one round trip and atomic.

    <prefix><id>    token   number of claims so far        owner   of the latest claim
                    until   end of its lease, epoch ms     done    the result, in base64

Leases follow the server's clock. Every hash expires: after keep_ms if it is done, else after lease_ms + keep_ms.
"""

import base64
import inspect
import secrets
from typing import Any, Protocol

from ..core import ClientError
from .claims import ClaimState, KeyClaim

CLAIM = """
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local held = redis.call('HMGET', KEYS[1], 'done', 'until')
if held[1] then return {2, 0, held[1]} end
if held[2] and tonumber(held[2]) > now then return {1, tonumber(held[2]) - now, ''} end
local token = redis.call('HINCRBY', KEYS[1], 'token', 1)
redis.call('HSET', KEYS[1], 'until', string.format('%.0f', now + ARGV[1]), 'owner', ARGV[3])
redis.call('PEXPIRE', KEYS[1], ARGV[1] + ARGV[2])
return {0, token, ''}
"""
COMPLETE = """
if redis.call('HGET', KEYS[1], 'owner') ~= ARGV[1] then return 0 end
redis.call('HSET', KEYS[1], 'done', ARGV[2])
redis.call('HDEL', KEYS[1], 'owner', 'until')
redis.call('PEXPIRE', KEYS[1], ARGV[3])
return 1
"""
RELEASE = """
if redis.call('HGET', KEYS[1], 'owner') ~= ARGV[1] then return 0 end
return redis.call('HDEL', KEYS[1], 'owner', 'until')
"""
_STATES = (ClaimState.TAKEN, ClaimState.BUSY, ClaimState.DONE)


class RedisClient(Protocol):
    """The part of `redis.asyncio.Redis` (package redis, extra `redis`) that is used."""

    def register_script(self, script: Any) -> Any:
        """Return a function of `keys` and `args` that runs the script."""
        ...


class RedisClaims:
    """Claims in a Redis server, shared by all members of a group.

    client: a `redis.asyncio.Redis`; its own settings decide timeouts, retries and the number of connections. prefix: of
    the names of its keys. The server must not evict keys (`maxmemory-policy noeviction`). What it loses in a crash or
    fail-over is forgotten: the effect of a repeat then happens again.
    """

    def __init__(self, client: RedisClient, *, prefix: str = "mqtrail:once:") -> None:
        self._prefix = prefix
        self._claim = client.register_script(CLAIM)
        self._complete = client.register_script(COMPLETE)
        self._release = client.register_script(RELEASE)

    async def claim(self, id: str, lease_ms: int, keep_ms: int) -> KeyClaim:
        """Take the key; see Claims. Raises the errors of the client."""
        owner = secrets.token_hex(8)
        state, number, result = await self._run(self._claim, id, lease_ms, keep_ms, owner)
        match _STATES[state]:
            case ClaimState.TAKEN:
                return KeyClaim(ClaimState.TAKEN, int(number), owner)
            case ClaimState.BUSY:
                return KeyClaim(ClaimState.BUSY, left_ms=int(number))
            case ClaimState.DONE:
                return KeyClaim(ClaimState.DONE, result=base64.b64decode(result))

    async def complete(self, id: str, claim: KeyClaim, result: bytes, keep_ms: int) -> bool:
        """Mark the key as done; see Claims. Raises the errors of the client."""
        done = await self._run(self._complete, id, claim.owner, base64.b64encode(result).decode(), keep_ms)
        return bool(done)

    async def release(self, id: str, claim: KeyClaim) -> None:
        """Give the key back; see Claims. Raises the errors of the client."""
        await self._run(self._release, id, claim.owner)

    async def _run(self, script: Any, id: str, *args: object) -> Any:
        answer = script(keys=[self._prefix + id], args=args)
        if not inspect.isawaitable(answer):
            raise ClientError("found a blocking Redis client, expected redis.asyncio.Redis")
        return await answer
