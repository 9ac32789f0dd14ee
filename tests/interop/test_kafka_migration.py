"""The example of a migration from Kafka, with a real Kafka: it goes forth and back, and planted defects are found."""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from aiokafka.admin import AIOKafkaAdminClient
from interop.kafka import KafkaServer
from tests.waiting import wait_until

pytestmark = pytest.mark.interop

# By name, as the other examples: for mypy they are no part of this project's packages.
main, run, shop = (importlib.import_module(f"examples.kafka_migration.{name}") for name in ("__main__", "run", "shop"))
COUNT = 12


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaServer]:
    with KafkaServer(tmp_path_factory.mktemp("kafka")) as server:
        yield server


async def topics(kafka: KafkaServer, *, delete: bool = False) -> list[str]:
    """The topics of Kafka; delete: and delete the orders."""
    admin = AIOKafkaAdminClient(bootstrap_servers=kafka.address)
    await admin.start()
    try:
        if delete:
            await admin.delete_topics([shop.TOPIC])
        return list(await admin.list_topics())
    finally:
        await admin.close()


RESULTS, COMPARE = "found: migrate results: exit code 1: found: ", "found: migrate compare: exit code 1: found: "
GATE = "found: migrate gate: exit code 1: NO results of handlers differences: found, "


@pytest.mark.parametrize(
    ("plants", "found"),
    [((), ["found: nothing wrong"]), ((run.FORGOTTEN, run.WRONG), [RESULTS, GATE, COMPARE, COMPARE])],
    ids=["honest", "planted"],
)
def test_forth_and_back(
    plants: tuple[str, ...], found: list[str], kafka: KafkaServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each order is charged; a producer that was forgotten and a consumer that decides otherwise are found."""
    options = ["--kafka", kafka.address, "--folder", str(tmp_path / "run"), "--orders", str(COUNT)]
    code = main.main([*options, *(f"--plant={one}" for one in plants)])
    out = capsys.readouterr().out
    print(out)
    lines = out[out.index("handled again") :].splitlines()[1:]
    assert (code, len(lines)) == (1, len(found) + 1) if plants else (0, 1)
    assert [line[: len(text)] for line, text in zip(lines, found, strict=False)] == found
    assert main.main(options) == 2, "the folder has charges"
    asyncio.run(topics(kafka, delete=True))
    wait_until(lambda: shop.TOPIC not in asyncio.run(topics(kafka)))
