"""kill -9 of a SYNC_MASTER and of its slave under load, then the promotion of the slave.

The answer SUCCESS of a send means that the slave has the message, unless the sender asked not to wait (WAIT=false). So
the promotion may lose what a power cut may lose under SYNC_FLUSH. The promoted slave has every other acknowledged
message at its place, and the clients' whole history, master and promoted slave together, keeps the promises of one
broker.
"""

import asyncio
import signal
from pathlib import Path
from typing import Any, cast

from tests.sim.checker import check
from tests.sim.cluster import CONCURRENT, TOPIC
from tests.sim.consumers import Consumer
from tests.sim.history import Ended, History, Lost
from tests.sim.network import Network

from .real import RealEngine, RealNetwork
from .rounds import BROKER, LOAD_S, PRODUCERS, FastProducer, KilledNode, audit, calm, create_topic, sending

MASTER: dict[str, Any] = {"broker_role": "SYNC_MASTER", "slave_timeout_ms": 20_000}
SLAVE: dict[str, Any] = {"broker_role": "SLAVE", "broker_id": 1, "register_ms": 300}
ACKED_MIN = 50  # by the slave in each round, so that a kill comes in the middle of replication
ACKED_S_MAX = 60.0


async def slave_rounds(folder: Path, *, rounds: int, seed: int) -> tuple[History, list[str]]:
    """Kill one or the other so many times, then promote the slave; return the history, and the broken promises."""
    folder.mkdir(parents=True, exist_ok=True)
    engine, network = RealEngine(seed), cast(Network, RealNetwork())
    history = History(sync_flush=True, groups={TOPIC: CONCURRENT})
    master = KilledNode(folder / "master", folder / "master.log", sync_flush=False, broker=MASTER)
    slave = KilledNode(folder / "slave", folder / "slave.log", sync_flush=False, broker=SLAVE, join=master.namesrv)
    async with master, slave:
        await master.start()
        await create_topic(master.broker, TOPIC)
        await slave.start()
        producers = [
            FastProducer(engine, network, history, f"producer-{number}", master.namesrv, TOPIC)
            for number in range(PRODUCERS)
        ]
        consumers = [
            Consumer(engine, network, history, f"{group}-{number}", master.namesrv, group, TOPIC)
            for group in CONCURRENT
            for number in range(2)
        ]
        for number in range(rounds + 1):
            await _replicated(history)
            await asyncio.sleep(engine.between(*LOAD_S))
            victims = (master,) if number == rounds else engine.chance.choice(((master,), (slave,), (master, slave)))
            for victim in victims:
                await victim.end(signal.SIGKILL)
            history.ends.append(Ended(engine.now_ms, BROKER))
            if number < rounds:
                for victim in victims:
                    await victim.start()
        history.lost.append(Lost(engine.now_ms, BROKER))
        await slave.end(signal.SIGTERM)
        promoted = KilledNode(
            slave.data, slave.log, sync_flush=False, broker={"broker_role": ""}, namesrv_port=master.namesrv_port
        )
        async with promoted:
            await promoted.start()
            await sending(history)
            for producer in producers:
                producer.stopped = True
            await calm(history)
            await audit(promoted.broker, history, engine)
            for client in (*producers, *consumers):
                client.kill()
            assert await promoted.end(signal.SIGTERM) == 0, slave.log.read_text()[-2000:]
    return history, check(history)


async def _replicated(history: History) -> None:
    """Wait for further acknowledgements: each means that the slave is there."""

    def acked() -> int:
        return sum(sent.acked_ms is not None for sent in history.sent.values())

    before = acked()
    async with asyncio.timeout(ACKED_S_MAX):
        while acked() < before + ACKED_MIN:
            await asyncio.sleep(0.05)
