"""Benchmarks of features, each beside Apache with the same feature enabled.
Signed sends, sends over TLS, SQL92-filtered pulls, transactions, ordered consumption; batches and pulls on shared
cores; two brokers.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import trustme
from interop.driver import JavaClient

from bench.apache import JVM_BENCH, ApachePeer, create_topic, measured
from bench.broker import BOTH_CORES, PEER, play, row
from bench.load import BATCH, DEEP, PULL, SYNC64, Load, Shape, run_load
from bench.ours import OurPeer
from bench.registry import figure
from bench.rows import Bar, Json, Row
from bench.session import APACHE_VERSION, Pair, Session, Setting, two_cores, warm

CREDENTIALS = ("operator", "operator1")
_AUTH = "org.apache.rocketmq.auth"
USERS_APACHE = {
    "authenticationEnabled": "true",
    "authenticationProvider": f"{_AUTH}.authentication.provider.DefaultAuthenticationProvider",
    "authenticationMetadataProvider": f"{_AUTH}.authentication.provider.LocalAuthenticationMetadataProvider",
    "initAuthenticationUser": '{"username":"operator","password":"operator1"}',
    "innerClientAuthenticationCredentials": '{"accessKey":"operator","secretKey":"operator1"}',
    "authorizationEnabled": "true",
    "authorizationProvider": f"{_AUTH}.authorization.provider.DefaultAuthorizationProvider",
    "authorizationMetadataProvider": f"{_AUTH}.authorization.provider.LocalAuthorizationMetadataProvider",
}
USERS_OURS = {"authentication": True, "authorization": True, "init_user": USERS_APACHE["initAuthenticationUser"]}
SQL_TOPIC, SQL = "BenchSql", "n BETWEEN 0 AND 49"  # half of the messages
ORDERED_TOPIC, ORDERED_COUNT, ORDERED_COUNT_QUICK = "BenchOrdered", 60_000, 2_000
JAVA_WARM_S, JAVA_WARM_QUICK_S = 12.0, 2.0
THREADS = 64
HALF = replace(DEEP, name="8x64", connections=DEEP.connections // 2)


@figure("security", "signed sends, server on one core", seconds=75)
def security(session: Session) -> Iterator[Row]:
    """Both brokers have users and policies of 5.x. The user is a super user. Every request is signed separately."""
    server, load = two_cores()
    setting = Setting(
        "signed", (server,), (load,), apache=USERS_APACHE, ours={"broker": USERS_OURS}, credentials=CREDENTIALS
    )
    pair = session.pair(setting)
    for shape in (SYNC64, DEEP):
        rounds = play(session, pair, replace(shape, credentials=CREDENTIALS), ("ours", "apache"))
        what = f"signed sends/s, server on one core, {shape.connections} × {shape.outstanding}, JSON headers"
        yield row(f"signed/{shape.name}", what, rounds["ours"], rounds["apache"], Bar(">=", 1.0))


@figure("features", "SQL92 pulls, transactions, ordered consumption, sends over TLS, server on one core", seconds=240)
def features(session: Session) -> Iterator[Row]:
    server, load = two_cores()
    papers = session.fresh_folder("papers")
    setting = Setting(
        "features",
        (server,),
        (load,),
        apache={"enablePropertyFilter": "true"},
        ours={"broker": {"property_filter": True}, "tls": certificate(papers)},
    )
    pair = session.pair(setting)
    for name in ("ours", "apache"):
        with pair.only(name) as peer:
            create_topic(peer.broker_address, SQL_TOPIC)
            sent = replace(DEEP, sql=SQL)
            run_load(peer.broker_address, sent, seconds=2, warmup=0, topic=SQL_TOPIC, cpus=pair.load_cpus)
            pair.settle(name)
    rounds = play(session, pair, replace(PULL, sql=SQL), ("ours", "apache"), topic=SQL_TOPIC)
    what = f"messages/s delivered in pulls of 32, 16 × 1, half of all match by SQL92 ({SQL}), server on one core"
    yield row("sql92/16x1", what, rounds["ours"], rounds["apache"], Bar(">=", 1.0))
    what = (
        f"transactions/s of the Java client {APACHE_VERSION}, {THREADS} threads, committed at once, server on one core"
    )
    yield java_sends(session, pair, "transactions", what, transactions=True)
    yield ordered(session, pair)
    what = f"sends/s over TLS of the Java client {APACHE_VERSION}, {THREADS} threads, server on one core"
    yield java_sends(session, pair, "tls", what, jvm=("-Dtls.enable=true",))


def certificate(folder: Path) -> dict[str, str]:
    """Make a certificate for 127.0.0.1; return our server's settings with it. Apache makes its own at each start."""
    issued = trustme.CA().issue_cert("127.0.0.1")
    issued.private_key_pem.write_to_path(str(folder / "key.pem"))
    with (folder / "cert.pem").open("wb") as file:
        for blob in issued.cert_chain_pems:
            file.write(blob.bytes())
    return {"cert_path": str(folder / "cert.pem"), "key_path": str(folder / "key.pem")}


def java_sends(
    session: Session, pair: Pair, name: str, what: str, *, jvm: tuple[str, ...] = (), transactions: bool = False
) -> Row:
    """Return the rate of synchronous sends of the Java client.

    One JVM sends to both brokers, so that what its compiler made of the client is the same for both. `more`
    has the share of a core that client and broker took.
    """
    warm_s = JAVA_WARM_QUICK_S if session.quick else JAVA_WARM_S
    names = ("ours", "apache")
    found: dict[str, list[Json]] = {who: [] for who in names}
    shares: dict[str, dict[str, list[float]]] = {who: {"client": [], "broker": []} for who in names}
    seconds = 2.5 * session.seconds
    with pair.only("ours") as peer:
        client = java_client(session, pair, peer.namesrv_address, jvm)
    try:
        for number in range(-2, session.rounds):
            for who in session.order(number, names):
                producer = f"Bench{name}-{who}"
                with pair.only(who) as peer:
                    if number == -2 and not transactions:
                        client.producer(producer, group=producer, namesrv=peer.namesrv_address)
                    with measured(client.process.pid) as own, measured(pair.pid(who)) as server:
                        turn = client.call(
                            "throughput",
                            name=f"Bench{number}{name}-{who}" if transactions else producer,
                            namesrv=peer.namesrv_address if transactions else None,
                            topic="BenchTopic",
                            threads=THREADS,
                            bodySize=500,
                            warmS=0.5,
                            seconds=warm_s / 2 if number < 0 else seconds,
                            timeout_s=warm_s + seconds + 90,
                        )
                if number >= 0:
                    found[who].append(turn)
                    shares[who]["client"].append(own.cpu_s / own.elapsed_s)
                    shares[who]["broker"].append(server.cpu_s / server.elapsed_s)
    finally:
        client.kill()
    return Row(
        f"{name}/{THREADS}-threads",
        what,
        "sends/s",
        [one["sendsPerS"] for one in found["ours"]],
        [one["sendsPerS"] for one in found["apache"]],
        PEER,
        Bar(">=", 1.0),
        errors=(failures(found["ours"]), failures(found["apache"])),
        more={"share_of_a_core": shares},
    )


def java_client(session: Session, pair: Pair, namesrv_address: str, jvm: tuple[str, ...] = ()) -> JavaClient:
    """Start an official client on the cores of the load generator."""
    folder = session.fresh_folder("java")
    return JavaClient(
        APACHE_VERSION, folder, namesrv_address, binary_headers=True, jvm=(*JVM_BENCH, *jvm), cpus=pair.load_cpus
    )


def failures(turns: list[Json]) -> int:
    """Number of failed sends."""
    return sum(sum(one["failures"].values()) for one in turns)


def ordered(session: Session, pair: Pair) -> Row:
    """Return how fast an ordered push consumer consumes the backlog of 16 queues. Each round uses a new group."""
    count = ORDERED_COUNT_QUICK if session.quick else ORDERED_COUNT
    rates: dict[str, list[float]] = {"ours": [], "apache": []}
    clients: dict[str, JavaClient] = {}
    try:
        for number in range(-1, session.rounds):
            for who in session.order(number, ("ours", "apache")):
                with pair.only(who) as peer:
                    if who not in clients:
                        create_topic(peer.broker_address, ORDERED_TOPIC)
                        sends_s = 0.0
                        while sends_s < 60 and stored(peer.broker_address, pair) < count:
                            sends_s += 1
                        pair.settle(who)
                        clients[who] = java_client(session, pair, peer.namesrv_address)
                    reported = clients[who].call(
                        "consumeInOrder",
                        namesrv=peer.namesrv_address,
                        group=f"BenchOrdered{time.time_ns()}",
                        topic=ORDERED_TOPIC,
                        count=count,
                        timeoutS=60,
                        timeout_s=120,
                    )
                if not reported["all"]:
                    raise RuntimeError(f"{who}: {reported['messages']} of {count} messages were consumed in 60 s")
                if number >= 0:
                    rates[who].append(float(reported["messages"]) / float(reported["seconds"]))
    finally:
        for client in clients.values():
            client.kill()
    what = f"messages/s of an ordered push consumer of the Java client {APACHE_VERSION}, 16 queues, server on one core"
    return Row("ordered/16-queues", what, "messages/s", rates["ours"], rates["apache"], PEER, Bar(">=", 1.0))


_stored: dict[str, int] = {}


def stored(address: str, pair: Pair) -> int:
    """Send to the ordered topic for a second; return its number of messages."""
    load = run_load(address, DEEP, seconds=1, warmup=0, topic=ORDERED_TOPIC, cpus=pair.load_cpus)
    _stored[address] = _stored.get(address, 0) + load.requests - load.errors
    return _stored[address]


@figure("shared-cores", "batches and pulls of 32, both cores shared", seconds=45)
def shared_cores(session: Session) -> Iterator[Row]:
    pair = session.pair(BOTH_CORES)
    topic = "BenchShared"
    for name in ("ours", "apache"):
        with pair.only(name) as peer:
            create_topic(peer.broker_address, topic)
            run_load(peer.broker_address, DEEP, seconds=2, warmup=0, topic=topic, cpus=pair.load_cpus)
            pair.settle(name)
    for shape, unit, limit in ((PULL, "pulls of 32, 16 × 1", 0.6), (BATCH, "batches of 32, 4 × 4", 0.5)):
        rounds = play(session, pair, shape, ("ours", "apache"), topic=topic)
        what = f"messages/s in {unit}, both cores shared"
        yield row(f"shared/{shape.name}", what, rounds["ours"], rounds["apache"], Bar(">=", limit))


@figure("two-brokers", "two brokers on two cores beside one Apache broker", seconds=110)
def two_brokers(session: Session) -> Iterator[Row]:
    """Half of the connections go to each of our two brokers; Apache's single broker gets all. Cores are shared."""
    session.alone()
    cores = two_cores()
    topic = "BenchTopic"
    ours = [OurPeer(session.fresh_folder(f"ours-{core}"), cpus=[core]) for core in cores]
    apache = ApachePeer(APACHE_VERSION, session.fresh_folder("apache"))
    try:
        apache.start()
        warm(apache.broker_address, 4.0 if session.quick else 36.0, None)
        apache.suspend()
        for our in ours:
            our.start()
            warm(our.broker_address, 1.0, None)
            our.suspend()

        def of_ours(shape: Shape) -> float:
            return together([(peer.broker_address, shape) for peer in ours], session.seconds, topic)

        def of_apache(shape: Shape) -> float:
            return together([(apache.broker_address, shape)] * 2, session.seconds, topic)

        for shape, what, limit in (
            (replace(PULL, connections=8), "messages/s in pulls of 32, 2 × 8 × 1", 1.0),
            (HALF, "sends/s, 2 × 8 × 64, JSON headers", 2.0),
            (replace(BATCH, connections=2), "messages/s in batches of 32, 2 × 2 × 4", 0.9),
        ):
            rates: dict[str, list[float]] = {"ours": [], "apache": []}
            for number in range(session.rounds):
                for who in session.order(number, ("ours", "apache")):
                    peers: Sequence[OurPeer | ApachePeer] = ours if who == "ours" else [apache]
                    for peer in peers:
                        peer.resume()
                    rates[who].append((of_ours if who == "ours" else of_apache)(shape))
                    for peer in peers:
                        peer.suspend()
            name = f"two-brokers/{shape.mode}"
            full = f"{what}: two of our brokers, one on each core, beside one of Apache's on both"
            yield Row(name, full, "messages/s", rates["ours"], rates["apache"], PEER, Bar(">=", limit))
    finally:
        for peer in ours:
            peer.__exit__(None, None, None)
        apache.__exit__(None, None, None)


def together(loads: list[tuple[str, Shape]], seconds: float, topic: str) -> float:
    """Run load generators in parallel; return the sum of messages per second."""

    def one(load: tuple[str, Shape]) -> Load:
        return run_load(load[0], load[1], seconds=seconds, warmup=0.3, topic=topic)

    with ThreadPoolExecutor(len(loads)) as threads:
        return sum(load.message_rate for load in threads.map(one, loads))
