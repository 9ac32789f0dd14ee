"""Idempotency: let the effect of a message happen once for each key, however often the message is delivered.

`Inbox` records the key in the transaction of the effect itself, in SQL. `Idempotent` claims the key before the effect
and marks it afterwards, in Redis (`RedisClaims`) or in this process (`MemoryClaims`).
"""

from .claims import Claims, ClaimsFull, ClaimState, KeyClaim, MemoryClaims
from .inbox import Inbox, inbox_ddl
from .keys import KeyFunction, message_id
from .once import ClaimLost, Idempotent, IdempotentCounts, KeyBusy, Once, fencing_token
from .redis_claims import RedisClaims

__all__ = [
    "ClaimLost",
    "ClaimState",
    "Claims",
    "ClaimsFull",
    "Idempotent",
    "IdempotentCounts",
    "Inbox",
    "KeyBusy",
    "KeyClaim",
    "KeyFunction",
    "MemoryClaims",
    "Once",
    "RedisClaims",
    "fencing_token",
    "inbox_ddl",
    "message_id",
]
