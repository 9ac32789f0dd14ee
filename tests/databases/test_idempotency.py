"""Idempotency on real PostgreSQL, MariaDB and Redis."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
import redis.asyncio
from sqlalchemy import create_engine, text

from mqtrail.client import ClaimState, ClientError, Idempotent, Inbox, KeyBusy, KeyClaim, RedisClaims
from mqtrail.client.core import SqlConnection
from mqtrail.client.idempotency.redis_claims import CLAIM

from .redis_server import RedisServer, redis_server
from .servers import DatabaseServer

pytestmark = pytest.mark.databases


def engine_of(database: DatabaseServer, url: str, **options: Any) -> Any:
    """Return an engine of SQLAlchemy."""
    return create_engine(url.replace(f"{database.scheme}://", f"{database.driver}://"), **options)


def test_threads_that_deliver_the_same_messages_write_once(database: DatabaseServer) -> None:
    """A second delivery waits at the row of the first; whatever the database refuses is retried."""
    engine = engine_of(database, database.new_database(), pool_size=8)
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE bills (msg_id INT)"))
    inbox = Inbox("CG", engine.connect, prune_ms=0)
    inbox.create()
    inbox.create()
    barrier = threading.Barrier(6)
    wrong: list[Exception] = []

    def work(one: int) -> None:
        barrier.wait(60)
        for number in range(20):
            failures = [OSError("the handler failed")] if (number + one) % 3 == 0 else []

            def effect(connection: Any, number: int = number, failures: list[OSError] = failures) -> bytes:
                connection.execute(text("INSERT INTO bills VALUES (:number)"), {"number": number})
                if failures:
                    raise failures.pop()
                return b"\0\xff" + str(number).encode()

            while True:
                try:
                    assert inbox.run(str(number), effect).result == b"\0\xff" + str(number).encode()
                    break
                except OSError:
                    pass
                except AssertionError as error:
                    wrong.append(error)
                    break
                except Exception as error:  # a deadlock: retried, as a consumer would
                    if "eadlock" not in str(error):
                        wrong.append(error)
                        break

    threads = [threading.Thread(target=work, args=(one,)) for one in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert wrong == []
    with engine.connect() as connection:
        rows = connection.execute(text("SELECT msg_id FROM bills ORDER BY msg_id")).fetchall()
    assert [row[0] for row in rows] == list(range(20))
    engine.dispose()


def test_keys_are_compared_exactly_and_old_ones_go(database: DatabaseServer) -> None:
    """Also where the database itself compares without case, and through the driver's own connections."""
    url = database.new_database()
    engine = engine_of(database, url)
    with engine.connect() as connection:
        driver = type(connection.connection.dbapi_connection).__module__.partition(".")[0]
    assert driver in ("psycopg", "pymysql")
    inbox = Inbox("CG", engine.raw_connection, keep_ms=60_000)
    inbox.create()
    keys = ["a", "A", "a ", "ä", "a\0", "x" * 10_000, "x" * 10_000 + "y", "\ud800", "中"]
    for key in keys:
        assert inbox.run(key, lambda connection: b"new").fresh
    for key in keys:
        assert inbox.run(key, lambda connection: b"again") == (False, b"new")
    assert inbox.prune() == 0
    with engine.begin() as connection:
        connection.execute(text("UPDATE mqtrail_inbox SET done_ms = 5"))
    assert inbox.prune() == len(keys)
    autocommit = engine_of(database, url, isolation_level="AUTOCOMMIT")
    with autocommit.connect() as connection, pytest.raises(ClientError, match="autocommit"):
        SqlConnection(connection)
    engine.dispose()
    autocommit.dispose()


def test_a_database_that_crashes_in_the_transaction_loses_both(database: DatabaseServer) -> None:
    """Neither key nor effect: the next delivery does it."""
    engine = engine_of(database, database.new_database())
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE bills (msg_id INT)"))
    inbox = Inbox("CG", engine.connect)
    inbox.create()

    def effect(connection: Any) -> None:
        connection.execute(text("INSERT INTO bills VALUES (1)"))

    def crash(connection: Any) -> None:
        effect(connection)
        database.kill()

    with pytest.raises(Exception):  # noqa: B017 - each driver has an error of its own
        inbox.run("1", crash)
    with pytest.raises(Exception):  # noqa: B017
        inbox.run("1", effect)
    database.start()
    engine.dispose()
    assert inbox.run("1", effect).fresh
    assert not inbox.run("1", effect).fresh
    with engine.connect() as connection:
        assert len(connection.execute(text("SELECT msg_id FROM bills")).fetchall()) == 1
    engine.dispose()


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    """A Redis server."""
    with redis_server() as running:
        yield running


@pytest.mark.parametrize("decoded", [False, True])
async def test_the_path_of_a_key_in_redis(server: RedisServer, decoded: bool) -> None:
    """Taken, busy, done with its result, forgotten; with both kinds of clients."""
    async with redis.asyncio.Redis(port=server.port, decode_responses=decoded) as client:
        await client.flushall()
        claims = RedisClaims(client)
        first = await claims.claim("a", 60_000, 200)
        assert (first.state, first.token) == (ClaimState.TAKEN, 1)
        busy = await claims.claim("a", 60_000, 200)
        assert busy.state is ClaimState.BUSY
        assert 0 < busy.left_ms <= 60_000
        await claims.release("a", KeyClaim(ClaimState.TAKEN, 1, "another"))
        assert (await claims.claim("a", 60_000, 200)).state is ClaimState.BUSY
        await claims.release("a", first)
        second = await claims.claim("a", 60_000, 200)
        assert (second.state, second.token) == (ClaimState.TAKEN, 2)
        assert not await claims.complete("a", first, b"late", 200)
        assert await claims.complete("a", second, b"\0\xff done", 200)
        assert await claims.claim("a", 60_000, 200) == KeyClaim(ClaimState.DONE, result=b"\0\xff done")
        assert not await claims.complete("a", second, b"twice", 200)
        async with asyncio.timeout(30):
            while (again := await claims.claim("a", 60_000, 200)).state is ClaimState.DONE:
                await asyncio.sleep(0.01)
        assert again.state is ClaimState.TAKEN
        await claims.claim("empty", 60_000, 60_000)
        assert [await client.pttl(key) > 0 for key in await client.keys("*")] == [True, True], "every key expires"


async def test_a_lease_in_redis_ends_and_fences_off_the_late_holder(server: RedisServer) -> None:
    """The heir's token is higher, and the late mark changes nothing."""
    async with redis.asyncio.Redis(port=server.port) as client:
        await client.flushall()
        claims = RedisClaims(client)
        late = await claims.claim("a", 30, 60_000)
        async with asyncio.timeout(30):
            while (heir := await claims.claim("a", 60_000, 60_000)).state is ClaimState.BUSY:
                await asyncio.sleep(0.005)
        assert heir.token == late.token + 1
        assert not await claims.complete("a", late, b"late", 60_000)
        assert await claims.complete("a", heir, b"", 60_000)
        assert (await claims.claim("a", 30, 60_000)).state is ClaimState.DONE


HOLDER = """
import asyncio, sys, redis.asyncio
from mqtrail.client import Idempotent, RedisClaims

async def main():
    once = Idempotent("CG", RedisClaims(redis.asyncio.Redis(port=int(sys.argv[1]))), lease_ms=1000)
    async def effect():
        print("working", flush=True)
        await asyncio.sleep(600)
    await once.run("k", effect)

asyncio.run(main())
"""


async def test_the_key_of_a_killed_process_is_free_after_its_lease(server: RedisServer) -> None:
    """Until then a second delivery is retried, not done."""
    async with redis.asyncio.Redis(port=server.port) as client:
        await client.flushall()
        holder = subprocess.Popen([sys.executable, "-c", HOLDER, str(server.port)], stdout=subprocess.PIPE, text=True)
        assert holder.stdout is not None
        assert await asyncio.to_thread(holder.stdout.readline) == "working\n"
        begun = time.monotonic()
        holder.kill()
        holder.communicate()
        once = Idempotent("CG", RedisClaims(client), lease_ms=1_000)

        async def effect() -> bytes:
            return b"heir"

        async with asyncio.timeout(60):
            while True:
                try:
                    assert await once.run("k", effect) == (True, b"heir")
                    break
                except KeyBusy as busy:
                    await asyncio.sleep(busy.left_ms / 1000)
        assert time.monotonic() - begun < 60


async def test_a_redis_server_that_is_down_or_empty(server: RedisServer) -> None:
    """Down: each message is retried. Empty after a crash: its keys are forgotten, the scripts are sent again."""
    async with redis.asyncio.Redis(port=server.port) as client:
        await client.flushall()
        once = Idempotent("CG", RedisClaims(client))
        calls = 0

        async def effect() -> None:
            nonlocal calls
            calls += 1

        assert (await once.run("k", effect)).fresh
        server.kill()
        with pytest.raises(redis.exceptions.ConnectionError):
            await once.run("k", effect)
        assert once.counts.store_failed == 1
        server.start()
        assert (await once.run("k", effect)).fresh
        assert not (await once.run("k", effect)).fresh
        assert calls == 2


async def test_a_blocking_client_is_refused(server: RedisServer) -> None:
    """It would stop the event loop."""
    with redis.Redis(port=server.port) as client:
        client.script_load(CLAIM.text)
        with pytest.raises(ClientError, match=r"redis\.asyncio"):
            await RedisClaims(client).claim("a", 1, 1)
