"""Claims in memory: leases, tokens, marks, and their bound."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqtrail.client import ClaimsFull, ClaimState, ClientError, KeyClaim, MemoryClaims
from tests.loops import run


class Clock:
    """A clock of the test."""

    def __init__(self) -> None:
        self.ms = 1_000

    def __call__(self) -> int:
        return self.ms


async def test_a_key_is_taken_busy_done_and_forgotten() -> None:
    """The path of a key, with the result of its effect."""
    clock = Clock()
    claims = MemoryClaims(clock_ms=clock)
    first = await claims.claim("a", 100, 500)
    assert first.state is ClaimState.TAKEN
    clock.ms += 40
    assert await claims.claim("a", 100, 500) == KeyClaim(ClaimState.BUSY, left_ms=60)
    assert await claims.complete("a", first, b"done", 500)
    assert await claims.claim("a", 100, 500) == KeyClaim(ClaimState.DONE, result=b"done")
    clock.ms += 500
    assert (await claims.claim("a", 100, 500)).state is ClaimState.TAKEN


async def test_a_late_holder_is_fenced_off() -> None:
    """After its lease another claim takes the key, with a higher token; the late one changes nothing."""
    clock = Clock()
    claims = MemoryClaims(clock_ms=clock)
    late = await claims.claim("a", 100, 500)
    clock.ms += 100
    heir = await claims.claim("a", 100, 500)
    assert (heir.state, heir.token > late.token) == (ClaimState.TAKEN, True)
    assert not await claims.complete("a", late, b"late", 500)
    await claims.release("a", late)
    assert (await claims.claim("a", 100, 500)).state is ClaimState.BUSY
    assert await claims.complete("a", heir, b"heir", 500)
    assert (await claims.claim("a", 100, 500)).result == b"heir"
    assert not await claims.complete("a", late, b"late", 500)


async def test_a_late_holder_without_an_heir_may_still_mark() -> None:
    """Nobody else ran: the effect happened once, and the mark says so."""
    clock = Clock()
    claims = MemoryClaims(clock_ms=clock)
    late = await claims.claim("a", 100, 500)
    clock.ms += 300
    assert await claims.complete("a", late, b"", 500)
    assert (await claims.claim("a", 100, 500)).state is ClaimState.DONE


async def test_the_bound_forgets_done_keys_and_keeps_running_ones() -> None:
    """keys_max holds. A running claim is never forgotten: then the store is full."""
    claims = MemoryClaims(3, clock_ms=Clock())
    running = await claims.claim("running", 100, 500)
    for name in "abcdef":
        assert await claims.complete(name, await claims.claim(name, 100, 500), b"", 500)
        assert len(claims) <= 3
    assert (await claims.claim("f", 100, 500)).state is ClaimState.DONE
    assert (await claims.claim("a", 100, 500)).state is ClaimState.TAKEN
    assert (await claims.claim("b", 100, 500)).state is ClaimState.TAKEN
    with pytest.raises(ClaimsFull, match="keys_max"):
        await claims.claim("c", 100, 500)
    assert await claims.complete("running", running, b"", 500)
    assert (await claims.claim("c", 100, 500)).state is ClaimState.TAKEN
    with pytest.raises(ClientError):
        MemoryClaims(0)


@given(
    st.lists(
        st.tuples(st.sampled_from(["claim", "complete", "release", "wait"]), st.integers(0, 2), st.integers(0, 5)),
        max_size=60,
    )
)
def test_no_two_holders_and_no_lost_mark(steps: list[tuple[str, int, int]]) -> None:
    """For any history: one lease at a time, rising tokens, a mark that lasts keep_ms, and only of the latest claim."""
    run(_play(steps))


async def _play(steps: list[tuple[str, int, int]]) -> None:
    clock = Clock()
    claims = MemoryClaims(clock_ms=clock)
    held: dict[str, list[KeyClaim]] = {}
    until: dict[str, int] = {}
    done: dict[str, int] = {}
    for act, key, choice in steps:
        name = str(key)
        mine = held.setdefault(name, [])
        if act == "wait":
            clock.ms += choice * 30
        elif act == "claim":
            claim = await claims.claim(name, 50, 200)
            if done.get(name, 0) > clock.ms:
                assert claim.state is ClaimState.DONE
            elif until.get(name, 0) > clock.ms:
                assert claim.state is ClaimState.BUSY
            else:
                assert claim.state is ClaimState.TAKEN
                assert all(claim.token > earlier.token for earlier in mine)
                mine.append(claim)
                until[name] = clock.ms + 50
                done.pop(name, None)
        elif mine:
            chosen = mine[choice % len(mine)]
            if act == "release":
                await claims.release(name, chosen)
                if chosen is mine[-1]:
                    until.pop(name, None)
                    done.pop(name, None)
            elif await claims.complete(name, chosen, b"", 200):
                assert chosen is mine[-1]
                done[name] = clock.ms + 200
