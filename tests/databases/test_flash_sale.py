"""The flash sale of examples/: with kills nothing is wrong, and each planted defect is found in stores and lake."""

from __future__ import annotations

import asyncio
import importlib
import os
import shutil
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import redis

from tests.ports import free_ports

from .redis_server import redis_server

pytestmark = pytest.mark.databases

# By name, as the other examples: for mypy they are no part of this project's packages.
main, check, run, sales, stock = (
    importlib.import_module(f"examples.flash_sale.{name}") for name in ("__main__", "check", "run", "sale", "stock")
)
Plant, Wrongs = sales.Plant, check.Wrongs

STOCK, BUYERS = 30, 40
HONEST = sales.Sale(folder=Path("honest"), name="honest", stock=STOCK, buyers=BUYERS)
GREEDY = replace(
    HONEST,
    folder=Path("greedy"),
    name="greedy",
    plants=frozenset({Plant.OVERSELL, Plant.DOUBLE_PAYMENTS, Plant.DOUBLE_POINTS}),
)
FORGETFUL = replace(HONEST, folder=Path("forgetful"), name="forgetful", plants=frozenset({Plant.LOST_ORDERS}))


@pytest.fixture
def redis_on_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """redis-server, under its name in the package that has only the program."""
    program = shutil.which("redis-server") or shutil.which("redis-check-rdb")
    assert program is not None, "found no Redis server, expected Debian's package: run scripts/databases.sh"
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "redis-server").symlink_to(program)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")


async def run_all(kills: dict[Any, Collection[str]], servers: Any) -> None:
    """Run sales at the same time, each with the parts to kill. Broker and Redis are killed below all of them."""
    async with asyncio.TaskGroup() as tasks:
        for sale, names in kills.items():
            tasks.create_task(run.sell(sale, servers, kills=names, say=print))


@pytest.mark.usefixtures("redis_on_path")
def test_counts_are_0_under_kills_and_each_planted_defect_is_found(tmp_path: Path) -> None:
    """kill -9 of each part. Stores and lake agree on every count, also on those that are not 0."""
    lake = tmp_path / "lake"
    with run.Servers(tmp_path, lambda: free_ports(1)[0]) as servers:
        honest, greedy, forgetful = (
            replace(sale, folder=tmp_path / sale.folder, redis=servers.redis_url, namesrv=servers.namesrv)
            for sale in (HONEST, GREEDY, FORGETFUL)
        )
        asyncio.run(run_all({honest: run.KILLS, greedy: ["points"], forgetful: ["shop"]}, servers))
        run.make_lake(servers.namesrv, lake)
        found = [asyncio.run(check.check(sale, lake)) for sale in (honest, greedy, forgetful)]
        for sale, verdict in zip((honest, greedy, forgetful), found, strict=True):
            print(check.report(sale, verdict))
            assert verdict.agree
            assert verdict.unsure == [] or sale is forgetful  # no message, if the shop was killed early
    assert [verdict.exit_code for verdict in found] == [0, 1, 1]
    assert (found[0].orders, found[0].named) == (STOCK, [])
    assert found[0].sms - found[0].sms_repeated == STOCK
    assert found[1].stores.oversell == BUYERS - STOCK
    assert found[1].stores.double_payments > 0
    assert found[1].stores.double_points > 0
    assert found[2].stores.lost_orders > 0
    assert replace(found[2].stores, lost_orders=0) == Wrongs(0, 0, 0, 0)


def test_what_cannot_be_used_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """No Redis, one that forgets, no broker: each with found, expected, remedy."""
    [port] = free_ports(1)
    missing = replace(HONEST, folder=tmp_path, redis=f"redis://127.0.0.1:{port}")
    with pytest.raises(sales.SaleError, match=r"found no Redis at .*expected one: start it"):
        asyncio.run(stock.check_redis(missing))
    arguments = ["prepare", "--folder", str(tmp_path / "sale"), "--namesrv", f"127.0.0.1:{port}", "--redis"]
    assert main.main([*arguments, missing.redis]) == 2
    assert "found no Redis" in capsys.readouterr().err
    with redis_server() as server:
        url = f"redis://127.0.0.1:{server.port}"
        with pytest.raises(sales.SaleError, match=r"appendonly 'no', expected 'yes'.*redis-cli config set"):
            asyncio.run(stock.check_redis(replace(missing, redis=url)))
        with redis.Redis.from_url(url) as client:
            client.config_set("appendonly", "yes")
            client.config_set("appendfsync", "always")
        assert main.main([*arguments, url]) == 2
    assert "check the address, and that a name server is running there" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("stores", "lake", "unsure", "code"),
    [
        (Wrongs(0, 0, 0, 0), Wrongs(0, 0, 0, 0), [], 0),
        (Wrongs(0, 0, 0, 0), Wrongs(0, 0, 0, 0), ["orders: 3 messages were not read"], 3),
        (Wrongs(0, 0, 0, 1), Wrongs(0, 0, 0, 0), [], 1),
        (Wrongs(0, 0, 0, 0), Wrongs(0, 2, 0, 0), ["orders: 3 messages were not read"], 1),
    ],
)
def test_the_verdict(stores: Any, lake: Any, unsure: list[str], code: int) -> None:
    """Found, nothing, cannot tell; a difference between stores and lake is said."""
    verdict = check.Verdict(stores, lake, unsure, ["order-7: TX_PENDING"], orders=4, sms=5, sms_repeated=1)
    assert verdict.exit_code == code
    text = check.report(HONEST, verdict)
    assert ("DO NOT AGREE" in text) == (stores != lake)
    assert all(one in text for one in [*unsure, "order-7: TX_PENDING"])
