"""One seeded life of a whole cluster: faults for a while, then calm, then a check of the remaining messages."""

from collections.abc import Mapping
from typing import ClassVar

from mqtrail.wire import (
    Host,
    Peer,
    PeerId,
    PullHeader,
    PullSysFlag,
    RemotingCommand,
    RequestCode,
    ResponseCode,
    decode_records,
    dlq_topic,
    pop_retry_topic,
    retry_topic,
)
from tests.store.hard_disk import Rates

from .broadcast import BroadcastConsumer
from .clients import note_read, place_of
from .consumers import Consumer, Member
from .engine import Engine
from .history import History
from .network import Network, NetworkRates
from .operators import Operator
from .ordered import OrderedConsumer
from .pop import OrderedPopConsumer, PopConsumer
from .producers import Producer
from .servers import LOCK_TTL_MS, Faults, SimBroker, SimNameServer

NAMESRV = "10.0.1.1:9876"
TOPIC = "orders"
CONCURRENT = ("payments", "stock")
KINDS: dict[str, type[Member]] = {
    **dict.fromkeys(CONCURRENT, Consumer),
    "ledger": OrderedConsumer,
    "parcels": PopConsumer,
    "crates": OrderedPopConsumer,
    "screens": BroadcastConsumer,
}
FAULTS_MS = 14_000.0  # duration of the faults
CALM_MS = 45_000.0  # time for the cluster to finish everything,
CALM_MS_MAX = 300_000.0  # and longer while it still works on a backlog:
IDLE_MS = 10_000.0  # without a message for so long, it is finished or stuck
AUDITOR = PeerId(1 << 30)
AUDIT_TRIES = 3  # each try reports and repairs one damaged record


class Cluster:
    """A name server, one or two brokers, producers and consumers. Subclasses and arguments plant bugs.

    KINDS: possible groups and the class of their members. A life has some of them.
    """

    BROKER: type[SimBroker] = SimBroker
    KINDS: ClassVar[Mapping[str, type[Member]]] = KINDS

    def __init__(self, seed: int, *, keeps_log: bool = False) -> None:
        self.engine = engine = Engine(seed, keeps_log=keeps_log)
        chance = engine.chance
        self.network = Network(engine)
        self.groups = sorted(chance.sample(sorted(self.KINDS), min(len(self.KINDS), chance.choice((2, 2, 3)))))
        pops = [group for group in self.groups if issubclass(self.KINDS[group], PopConsumer)]
        broadcasts = [group for group in self.groups if issubclass(self.KINDS[group], BroadcastConsumer)]
        self.history = History(
            sync_flush=chance.random() < 0.6,
            groups={TOPIC: tuple(group for group in self.groups if group not in (*pops, *broadcasts))},
            poppers={TOPIC: tuple(pops)},
            lock_ttl_ms=LOCK_TTL_MS,
        )
        self.namesrv = SimNameServer(engine, self.network, NAMESRV)
        self.brokers = [
            self.BROKER(
                engine,
                self.network,
                self.history,
                name=f"broker-{letter}",
                address=Host(f"10.0.2.{number + 1}", 10911),
                namesrv=NAMESRV,
                faults=self.faults(),
            )
            for number, letter in enumerate("ab"[: chance.choice((1, 1, 2))])
        ]
        self.network.rates = NetworkRates(
            lost=chance.choice((0, 0.005, 0.02)),
            doubled=chance.choice((0, 0.01)),
            cut=chance.choice((0, 0.003, 0.01)),
            late=chance.choice((0, 0.02)),
            refused=chance.choice((0, 0.05)),
        )
        self.producers = [self._producer(number) for number in range(2)]
        self.operators = [Operator(engine, self.network, self.history, broker) for broker in self.brokers]
        self._members = 0
        self.consumers = [self._consumer(group) for group in self.groups for _ in range(chance.choice((1, 2)))]
        mode = "SYNC" if self.history.sync_flush else "ASYNC"
        engine.log(f"seed {seed}: {mode}_FLUSH, {len(self.brokers)} brokers, {', '.join(self.groups)}")

    def faults(self) -> Faults:
        """Draw the fault rates of a machine.

        Most machines have few kinds of fault, so that the effect of each is visible.
        """
        choice = self.engine.chance.choice
        return Faults(
            disk=Rates(
                power_cut=choice((0, 0.001, 0.005)),
                full=choice((0, 0, 0.01)),
                write_error=choice((0, 0, 0.004)),
                sync_error=choice((0, 0, 0.01)),
                short_read=choice((0, 0.1)),
                read_error=choice((0, 0, 0.001)),
            ),
            sync_ms_max=choice((2.0, 8.0, 300.0)),
            rot=choice((0, 0.2)),
            lane=choice((0.0, 0.5, 1.0)),
            checkpoint_ms=choice((700.0, 3_000.0, 10_000.0)),
        )

    def _producer(self, number: int) -> Producer:
        return Producer(self.engine, self.network, self.history, f"producer-{number}", NAMESRV, TOPIC)

    def _consumer(self, group: str, before: Member | None = None) -> Member:
        """Return a new member. before: the member that it replaces, perhaps with its name and disk."""
        kind = self.KINDS[group]
        self._members += 1
        name = before.name if isinstance(before, BroadcastConsumer) else f"{group}-{self._members}"
        member = kind(self.engine, self.network, self.history, name, NAMESRV, group, TOPIC)
        if isinstance(member, BroadcastConsumer):
            self.history.broadcasts[name] = TOPIC
            if isinstance(before, BroadcastConsumer):
                member.offsets = before.offsets
        return member

    def live(self) -> History:
        """Run the whole life; return its history."""
        engine = self.engine
        engine.run_until(1.0)
        for broker in self.brokers:
            broker.begin(TOPIC)
        engine.after(engine.between(500, 2_000), self._cause_fault)
        engine.run_until(FAULTS_MS)
        self._calm()
        engine.run_until(FAULTS_MS + CALM_MS - IDLE_MS)
        worked = -1
        while engine.now_ms < FAULTS_MS + CALM_MS_MAX and worked != (worked := self._work()):
            engine.run_until(engine.now_ms + IDLE_MS)
        for broker in self.brokers:
            self._audit(broker)
        return self.history

    def _cause_fault(self) -> None:
        """Cause one fault, and schedule the next."""
        engine = self.engine
        if engine.now_ms > FAULTS_MS:
            return
        chance = engine.chance
        broker = chance.choice(self.brokers)
        match chance.choice(("kill", "power", "power", "stop", "consumer", "jump", "namesrv", "nothing")):
            case "kill":
                broker.kill(power=False)
            case "power":
                broker.kill(power=True)
            case "stop":
                broker.stop()
            case "consumer":
                place = chance.randrange(len(self.consumers))
                self.consumers[place].kill()
                self.consumers[place] = self._consumer(self.consumers[place].group, self.consumers[place])
            case "jump":
                self._jump(broker)
            case "namesrv":
                if NAMESRV in self.network.listeners:
                    self.namesrv.kill()
        engine.after(engine.between(200, 4_000), self._cause_fault)

    def _jump(self, broker: SimBroker) -> None:
        """Set a machine's clock for a while: by any amount if the broker's clock is steady."""
        engine = self.engine
        if broker.is_steady and engine.chance.random() < 0.7:
            by_ms = engine.chance.choice((-3_600_000, -60_000, 60_000, 3_600_000))
            broker.jump(by_ms)
            engine.after(engine.between(100, 8_000), lambda: broker.jump(-by_ms))
        else:
            broker.jump(engine.chance.choice((-5_000, -500, 500, 5_000)))

    def _work(self) -> int:
        """How often messages were popped and handled."""
        return len(self.history.popped) + len(self.history.handled)

    def _calm(self) -> None:
        self.engine.log("calm")
        self.network.rates = NetworkRates()
        for broker in self.brokers:
            broker.settle()
        for producer in self.producers:
            producer.stopped = True
        for operator in self.operators:
            operator.stopped = True

    def _audit(self, broker: SimBroker) -> None:
        """Read every queue of the users' topics."""
        assert broker.life is not None, f"{broker.name} did not come up again, seed={self.engine.seed}"
        of_groups = [
            make(group)
            for group in self.groups
            for make in (retry_topic, dlq_topic, lambda group: pop_retry_topic(TOPIC, group))
        ]
        for topic in (TOPIC, *of_groups):
            for queue_id in range(4):
                self._audit_queue(broker, topic, queue_id)

    def _audit_queue(self, broker: SimBroker, topic: str, queue_id: int) -> None:
        life = broker.life
        assert life is not None
        offset, tries = 0, AUDIT_TRIES
        while True:
            header = PullHeader("audit", topic, queue_id, offset, 32, int(PullSysFlag.SUBSCRIPTION), 0, 0, "*")
            command = RemotingCommand(RequestCode.PULL_MESSAGE, header.to_ext(), opaque=1)
            (send,) = life.core.handle(Peer(AUDITOR, Host("10.0.0.9", 1)), command, broker.clock_ms())
            reply = send.command
            if reply.code == ResponseCode.SYSTEM_ERROR and "damage" in (reply.remark or "") and tries:
                tries -= 1
                broker.restore(reply.remark or "")
                continue
            if reply.code != ResponseCode.SUCCESS:
                moved = reply.code in (ResponseCode.PULL_RETRY_IMMEDIATELY, ResponseCode.PULL_OFFSET_MOVED)
                next_offset = int(reply.ext.get("nextBeginOffset", offset)) if moved else offset
                if next_offset <= offset:
                    return
                offset = next_offset
                continue
            for message in decode_records(reply.body):
                note_read(self.history, self.engine.now_ms, "audit", place_of(broker.name, message), message)
            offset = int(reply.ext["nextBeginOffset"])
