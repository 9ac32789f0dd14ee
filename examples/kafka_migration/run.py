"""The migration, step by step. Each step prints its commands, so that they can be repeated by hand."""

import asyncio
import contextlib
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path

from aiokafka import AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.errors import TopicAlreadyExistsError

from mqtrail.migrate import KafkaConfig, ResultLog, TeeConfig, TeeProducer, TeeSide, read_bridge

from .shop import (
    GROUP,
    SHADOW,
    TOPIC,
    Ledger,
    RunError,
    charge,
    consuming,
    new_billing,
    old_billing,
    order,
    shadow_billing,
    until,
)

PARTITIONS = 3
FORGOTTEN, WRONG = "forgotten-producer", "wrong-charge"
Say = Callable[[str], None]


@dataclass(frozen=True)
class Migration:
    """Where both sides are, and which defects are planted. count: orders of each of the four phases."""

    kafka: str
    namesrv: str
    folder: Path
    count: int = 40
    plants: frozenset[str] = frozenset()
    say: Say = print

    @property
    def files(self) -> Path:
        """The folder with the files of the migration."""
        return self.folder / "migration"

    async def run(self) -> list[str]:
        """Go forth and back; return what was found wrong. RunError."""
        self.folder.mkdir(parents=True, exist_ok=True)
        ledger = Ledger(self.folder / "ledger.db")
        if ledger.charges():
            raise RunError(
                f"found charges in {self.folder}, expected none: pass a new --folder, and a Kafka without orders"
            )
        with ResultLog(self.files, TeeSide.KAFKA) as old, ResultLog(self.files, TeeSide.ROCKETMQ) as new:
            found = await self._before(ledger, old, new)
            found += await self._cut_over(ledger, old)
        found += await self._back(ledger)
        return found + self._charged_wrongly(ledger)

    # -- the steps -------------------------------------------------------------------------------------------------

    async def _before(self, ledger: Ledger, old: ResultLog, new: ResultLog) -> list[str]:
        """The old world, the bridge, the comparison of both sides, and the shadow."""
        count, found = self.count, list[str]()
        self._title("1. The old world: orders in Kafka, billing reads them")
        await self._create_topic()
        await self._order(range(count))
        await old_billing(self.kafka, ledger, old, lambda: ledger.has(count))
        self.say(f"{count} orders sent and charged")
        self._title("2. The bridge sends them to RocketMQ, and compare finds both sides equal")
        await self._do("topic", "create", TOPIC, "--queues", str(PARTITIONS))
        await self._do("group", "create", GROUP)
        async with self._bridge():
            await self._bridged(count)
        found += await self._expect("compare", TOPIC, "--kafka", self.kafka)
        self._title("3. A shadow of billing decides on RocketMQ what it would charge; results are equal")
        seen: set[str] = set()
        async with consuming(self.namesrv, SHADOW, shadow_billing(new, seen, is_wrong=WRONG in self.plants)):
            await until(lambda: len(seen) == count, "shadow that has seen all orders")
        return found + await self._expect("results", "--grace", "0s")

    async def _cut_over(self, ledger: Ledger, old: ResultLog) -> list[str]:
        """The group moves while orders go to Kafka; then the producers, with a tee."""
        count, found = self.count, list[str]()
        self._title("4. Billing moves: its offsets are translated, and the gate says go")
        async with self._bridge():
            await self._order(range(count, 2 * count))
            await old_billing(self.kafka, ledger, old, lambda: len(ledger.charges()) >= count + count // 2)
            await self._bridged(2 * count)
            found += await self._expect("compare", TOPIC, "--kafka", self.kafka)
            await self._do("migrate", "offsets", GROUP, "--kafka", self.kafka, "--apply", *self._in_folder())
            async with consuming(self.namesrv, GROUP, new_billing(ledger)):
                await until(lambda: ledger.has(2 * count), "charges of all orders")
                found += await self._expect("gate", "--group", GROUP)
        self._title("5. The producers move: both sides get each order, Kafka decides")
        async with consuming(self.namesrv, GROUP, new_billing(ledger)):
            await self._tee(TeeSide.KAFKA, range(2 * count, 3 * count))
            if FORGOTTEN in self.plants:
                await self._order([4 * count])  # by a producer that still writes to Kafka alone
            await until(lambda: ledger.has(3 * count), "charges of all orders")
        return found + await self._expect("compare", TOPIC, "--kafka", self.kafka, "--grace", "0s")

    async def _back(self, ledger: Ledger) -> list[str]:
        """RocketMQ decides; then the group goes back to Kafka."""
        count = self.count
        self._title("6. RocketMQ decides, Kafka gets copies")
        await self._tee(TeeSide.ROCKETMQ, range(3 * count, 4 * count))
        found = await self._expect("compare", TOPIC, "--kafka", self.kafka, "--grace", "0s")
        self._title("7. Billing goes back to Kafka, and misses no order")
        accept = ["--accept-unknown"] if found else []
        await self._do("migrate", "back", GROUP, "--kafka", self.kafka, "--apply", *accept, *self._in_folder())
        with ResultLog(self.folder / "after", TeeSide.KAFKA) as results:
            await old_billing(self.kafka, ledger, results, lambda: ledger.has(4 * count))
        return found

    def _charged_wrongly(self, ledger: Ledger) -> list[str]:
        charges, wrong = ledger.charges(), list[str]()
        for number in range(4 * self.count):
            wanted = charge(json.loads(order(number)[1]))
            if wanted["order"] not in charges or charges[wanted["order"]][0] != wanted["cents"]:
                wrong.append(f"{wanted['order']} was not charged, or wrongly")
        again = sum(handled - 1 for _, handled in charges.values())
        self.say(f"\n{len(charges)} orders charged, {again} handled again without effect")
        return wrong

    # -- what they use ---------------------------------------------------------------------------------------------

    def _title(self, text: str) -> None:
        self.say(f"\n{text}")

    def _in_folder(self) -> tuple[str, str]:
        return "--folder", str(self.files)

    async def _create_topic(self) -> None:
        admin = AIOKafkaAdminClient(bootstrap_servers=self.kafka)
        await admin.start()
        try:
            with contextlib.suppress(TopicAlreadyExistsError):
                await admin.create_topics([NewTopic(TOPIC, PARTITIONS, 1)])
        finally:
            await admin.close()

    async def _order(self, numbers: range | list[int]) -> None:
        """Write orders to Kafka, as the old producers do."""
        async with AIOKafkaProducer(bootstrap_servers=self.kafka) as producer:
            for key, value in map(order, numbers):
                await producer.send_and_wait(TOPIC, value, key=key)

    async def _tee(self, decides: TeeSide, numbers: range) -> None:
        """Write orders to both sides, as the new producers do."""
        config = TeeConfig(kafka=KafkaConfig(self.kafka), topic=TOPIC, target=TOPIC, folder=self.files, decides=decides)
        async with TeeProducer(config, self.namesrv) as tee:
            for key, value in map(order, numbers):
                await tee.send(value, key=key)
            counts = await tee.drain()
        self.say(f"{counts.sent} orders sent, {decides} decided; {counts.copied} copies, {counts.failed} failed")

    @contextlib.asynccontextmanager
    async def _bridge(self) -> AsyncIterator[None]:
        """Run the bridge beside the block; then stop it with SIGTERM, at lag 0."""
        arguments = ("migrate", "bridge", TOPIC, "--kafka", self.kafka, *self._in_folder())
        self.say(f"$ mqtrail {' '.join(arguments)} &")
        process = await self._start(*arguments)
        try:
            yield
            process.send_signal(signal.SIGTERM)
            await self._end(process)
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()

    async def _bridged(self, count: int) -> None:
        """Wait until the bridge has sent so many records, as `mqtrail migrate status` shows it."""

        def has_sent() -> bool:
            state = read_bridge(self.files)
            return state is not None and sum(state.counts.values()) >= count

        await until(has_sent, f"bridge that has sent {count} records")

    async def _expect(self, name: str, *arguments: str) -> list[str]:
        """Run a check; return what it found, if its exit code is not 0."""
        code, out = await self._run("migrate", name, *arguments, *self._in_folder())
        if code == 0:
            return []
        lines = out.splitlines() or ["no output"]
        line = next((one for one in lines if one.startswith("NO ")), lines[0])  # NO: a check of the gate that fails
        return [f"migrate {name}: exit code {code}: {' '.join(line.split())}"]

    async def _do(self, *arguments: str) -> None:
        """Run a command that must succeed. RunError."""
        code, _ = await self._run(*arguments)
        if code:
            raise RunError(
                f"found exit code {code} of `mqtrail {' '.join(arguments)}`, expected 0: read its output above"
            )

    async def _run(self, *arguments: str) -> tuple[int, str]:
        self.say(f"$ mqtrail {' '.join(arguments)}")
        process = await self._start(*arguments)
        return await self._end(process)

    async def _start(self, *arguments: str) -> asyncio.subprocess.Process:
        return await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "mqtrail", *arguments),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT if "--json" not in arguments else asyncio.subprocess.DEVNULL,
            env=os.environ | {"NAMESRV_ADDR": self.namesrv},
        )

    async def _end(self, process: asyncio.subprocess.Process) -> tuple[int, str]:
        async with asyncio.timeout(120):
            out, _ = await process.communicate()
        text = out.decode().strip()
        if text:
            self.say(text)
        assert process.returncode is not None
        return process.returncode, text
