"""The mirror between two of our clusters: what a copy has, what is not sent twice, and what is refused."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import inf
from pathlib import Path
from types import SimpleNamespace

import pytest

from mqtrail.client import (
    Admin,
    InstanceConfig,
    Message,
    MessageExt,
    MessageQueue,
    ProducerConfig,
    SyncAdmin,
    SyncProducer,
)
from mqtrail.clock import now_ms
from mqtrail.mirror import ClusterAway, Mirror, MirrorConfig, MirrorError, MirrorState, origin_of, read_mirror
from mqtrail.mirror.source import MirrorSource, QueuePart, SourceRanges
from mqtrail.mirror.state import FILES, save_mirror
from mqtrail.testing import Embedded, embedded
from mqtrail.wire import PROPERTY_SHARDING_KEY, TopicConfig


@pytest.fixture(scope="module")
def east() -> Iterator[Embedded]:
    with embedded() as running:
        yield running


@pytest.fixture(scope="module")
def west() -> Iterator[Embedded]:
    with embedded() as running:
        yield running


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mqtrail.feed.run.RETRY_S", 0.001)
    monkeypatch.setattr("mqtrail.mirror.run.POLL_S", 0.001)


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    name: str = request.node.originalname
    return name


def create(cluster: Embedded, topic: str, queues: int = 2) -> None:
    with SyncAdmin(cluster.namesrv_address) as admin:
        assert admin.create_topic(TopicConfig(topic, queues, queues)).complete


def send(cluster: Embedded, topic: str, messages: Sequence[tuple[int, Message]]) -> None:
    with SyncProducer("test", cluster.namesrv_address) as producer:
        for queue_id, message in messages:
            producer.send(message, queue=MessageQueue(topic, "broker-a", queue_id))


def numbered(topic: str, count: int, first: int = 0) -> list[tuple[int, Message]]:
    """Messages v0, v1, … by turns in two queues."""
    return [(one % 2, Message(topic, b"v%d" % one)) for one in range(first, first + count)]


def found_in(cluster: Embedded, topic: str) -> list[list[MessageExt]]:
    """Of each queue."""
    with SyncAdmin(cluster.namesrv_address) as admin:
        return [list(admin.messages_of_queue(queue, 0, admin.max_offset(queue))) for queue in admin.queues(topic)]


def bodies(cluster: Embedded, topic: str) -> list[list[bytes]]:
    return [[one.body for one in queue] for queue in found_in(cluster, topic)]


def configured(source: Embedded, folder: Path, topic: str, names: tuple[str, str] = ("east", "west")) -> MirrorConfig:
    return MirrorConfig(
        source=names[0],
        target=names[1],
        topics=(topic,),
        folder=folder,
        namesrv=source.namesrv_address,
        instance=InstanceConfig(),
        is_once=True,
        retry_ms=0,
    )


def run(config: MirrorConfig, target: Embedded) -> MirrorState:
    return asyncio.run(Mirror(config, target.namesrv_address, ProducerConfig()).run())


def refused(config: MirrorConfig, target: Embedded) -> str:
    with pytest.raises(MirrorError) as raised:
        run(config, target)
    return str(raised.value)


def test_a_copy_is_its_message(topic: str, east: Embedded, west: Embedded, tmp_path: Path) -> None:
    """Body, keys, tags, properties, flag, id, queue and order; born time and place of the source as properties."""
    create(east, topic)
    create(west, topic)
    special = Message(
        topic, b"\x00\xff", tags="paid", keys=("k1", "k2"), flag=7, properties={"x": "é", "WAIT": "false"}
    )
    send(east, topic, [(1, special), *numbered(topic, 300)])
    state = run(configured(east, tmp_path, topic), west)
    assert (state.counts, state.lag(), state.is_ended) == ({"copied": 301}, 0, True)
    source, target = found_in(east, topic), found_in(west, topic)
    for ones, copies in zip(source, target, strict=True):
        assert [one.body for one in ones] == [one.body for one in copies]
    one, copy = source[1][0], target[1][0]
    assert (copy.body, copy.keys, copy.tags, copy.flag, copy.msg_id) == (one.body, one.keys, one.tags, 7, one.msg_id)
    assert (copy.properties["x"], copy.properties.get("WAIT", "true")) == ("é", "true")
    assert copy.properties["MIRROR_BORN"] == str(one.born_timestamp_ms)
    assert copy.properties["MIRROR_PATH"] == "east"
    assert copy.properties["MIRROR_FROM"] == f"broker-a/{topic}/1@0"
    origin = origin_of(copy.properties, "east")
    assert origin == (MessageQueue(topic, "broker-a", 1), 0)
    assert origin_of(copy.properties, "west") is None


def test_a_start_that_fails_is_not_saved(
    topic: str, east: Embedded, west: Embedded, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A state with some of the queues would begin the others at their first message, not where it was asked to."""
    create(east, topic)
    create(west, topic)
    send(east, topic, numbered(topic, 4))
    config = replace(configured(east, tmp_path, topic), start=now_ms() + 1)
    asked = MirrorSource.at_time

    async def at_time(source: MirrorSource, queue: MessageQueue, time_ms: int) -> int:
        if queue.queue_id == 1:
            raise ClusterAway("the broker is away")
        return await asked(source, queue, time_ms)

    with monkeypatch.context() as patched:
        patched.setattr(MirrorSource, "at_time", at_time)
        assert "the broker is away" in refused(config, west)
    assert read_mirror(tmp_path) is None
    assert run(config, west).counts == {}


def test_goes_on(topic: str, east: Embedded, west: Embedded, tmp_path: Path) -> None:
    """After its end, and until it is stopped."""
    create(east, topic)
    create(west, topic)
    send(east, topic, numbered(topic, 4))
    config = configured(east, tmp_path, topic)
    run(config, west)
    send(east, topic, numbered(topic, 3, first=4))

    async def stopped() -> MirrorState:
        mirror = Mirror(replace(config, is_once=False, retry_ms=60_000), west.namesrv_address, ProducerConfig())
        running = asyncio.create_task(mirror.run())
        async with asyncio.timeout(30):
            while not (mirror._state and mirror.state.counts.get("copied") == 7):
                await asyncio.sleep(0.001)
        mirror.stop()
        return await running

    assert asyncio.run(stopped()).counts == {"copied": 7}
    assert bodies(west, topic) == [[b"v0", b"v2", b"v4", b"v6"], [b"v1", b"v3", b"v5"]]


def test_after_a_kill(topic: str, east: Embedded, west: Embedded, tmp_path: Path) -> None:
    """Copies that were stored after the last save are found, and not sent again; nothing is missing."""
    create(east, topic)
    create(west, topic)
    send(east, topic, numbered(topic, 4))
    config = configured(east, tmp_path, topic)
    saved = run(config, west)
    send(east, topic, numbered(topic, 6, first=4))
    send(west, topic, [(0, Message(topic, b"of another producer"))])
    run(config, west)
    send(east, topic, numbered(topic, 2, first=10))
    save_mirror(tmp_path, replace(saved, is_ended=False))  # as it was before the kill
    state = run(config, west)
    assert state.counts == {"copied": 6, "found": 6}
    assert bodies(west, topic) == [
        [b"v0", b"v2", b"of another producer", *(b"v%d" % one for one in (4, 6, 8, 10))],
        [b"v1", b"v3", *(b"v%d" % one for one in (5, 7, 9, 11))],
    ]
    assert (state.is_ended, sum(state.targets.values())) == (True, 13)


@pytest.mark.parametrize("names", [("west", "east"), ("other", "names")])
def test_two_mirrors_do_not_loop(
    names: tuple[str, str], topic: str, east: Embedded, west: Embedded, tmp_path: Path
) -> None:
    """Also if the two do not use the same names: then a message goes round once, and no further."""
    create(east, topic, 1)
    create(west, topic, 1)
    topic_messages = [(0, Message(topic, b"east %a" % (names,)))]
    send(east, topic, topic_messages)
    there = configured(east, tmp_path / "there", topic)
    back = configured(west, tmp_path / "back", topic, names)
    there, back = replace(there, may_repeat=True), replace(back, may_repeat=True)
    send(west, topic, [(0, Message(topic, b"west %a" % (names,)))])
    for _ in range(3):
        run(there, west)
        run(back, east)
    with SyncAdmin(east.namesrv_address) as admin:
        before = admin.max_offset(MessageQueue(topic, "broker-a", 0))
    states = run(there, west), run(back, east)
    with SyncAdmin(east.namesrv_address) as admin:
        assert admin.max_offset(MessageQueue(topic, "broker-a", 0)) == before
    if names == ("west", "east"):
        assert [state.counts for state in states] == [{"copied": 1, "looped": 1}] * 2
        assert len({one.msg_id for one in found_in(east, topic)[0]}) == before == 2
    else:
        assert all(state.counts["looped"] for state in states)


def test_only_own(topic: str, east: Embedded, west: Embedded, tmp_path: Path) -> None:
    """What another mirror brought to the source is left out if that is wanted."""
    create(east, topic, 1)
    create(west, topic, 1)
    foreign = Message(topic, b"foreign", properties={"MIRROR_PATH": "north", "MIRROR_FROM": "b/t/0@1"})
    send(east, topic, [(0, foreign), (0, Message(topic, b"own"))])
    config = configured(east, tmp_path / "own", topic)
    assert run(replace(config, only_own=True), west).counts == {"foreign": 1, "copied": 1}
    assert bodies(west, topic) == [[b"own"]]
    run(replace(config, folder=tmp_path / "all", may_repeat=True), west)
    assert [one.properties["MIRROR_PATH"] for one in found_in(west, topic)[0]] == ["east", "north,east", "east"]


def test_order_by_sharding_key(topic: str, east: Embedded, west: Embedded, tmp_path: Path) -> None:
    """If the target has another number of queues; what has no key stays with its queue."""
    create(east, topic, 2)
    create(west, topic, 3)
    keyed = [
        (one % 2, Message(topic, b"k%d-%d" % (one % 2, one), properties={PROPERTY_SHARDING_KEY: f"key {one % 2}"}))
        for one in range(20)
    ]
    send(east, topic, keyed + [(0, Message(topic, b"n%d" % one)) for one in range(3)])
    state = run(configured(east, tmp_path, topic), west)
    assert state.keyed == [topic]
    found = bodies(west, topic)
    for start, count in ((b"k0", 10), (b"k1", 10), (b"n", 3)):
        (ones,) = [those for queue in found if (those := [one for one in queue if one.startswith(start)])]
        assert len(ones) == count
        assert ones == sorted(ones, key=lambda one: int(one.removeprefix(b"n").rpartition(b"-")[2]))


def test_start(topic: str, east: Embedded, west: Embedded, tmp_path: Path) -> None:
    """At the end, or by time; a topic that is added to a mirror begins there too."""
    create(east, topic)
    create(west, topic)
    send(east, topic, numbered(topic, 4))
    config = replace(configured(east, tmp_path / "end", topic), start="end")
    assert run(config, west).counts == {}
    stored_ms = max(one.store_timestamp_ms for queue in found_in(east, topic) for one in queue)
    at_time = replace(config, folder=tmp_path / "time", start=stored_ms + 1)
    assert run(at_time, west).counts == {}
    other = f"{topic}-2"
    create(east, other)
    create(west, other)
    send(east, other, numbered(other, 2))
    assert run(replace(config, topics=(topic, other)), west).counts == {}
    send(east, other, numbered(other, 3))
    assert run(replace(config, topics=(topic, other)), west).counts == {"copied": 3}


def test_refused(topic: str, east: Embedded, west: Embedded, tmp_path: Path) -> None:
    """Each with what was found, what was expected, and a remedy; the folder then goes on."""
    config = configured(east, tmp_path / "one", topic)
    assert f"found no topic {topic!r}" in refused(config, west)
    create(west, topic)
    assert "in the source, expected it: check its name" in refused(config, west)
    create(east, topic)
    assert "pass --source-name and --target-name" in refused(replace(config, target="east"), west)
    assert "in both clusters, expected two" in refused(config, east)
    send(east, topic, [(0, Message(topic, b"large" * 100, properties={"a": "b" * 32_640})), *numbered(topic, 2)])
    assert f"--skip-message broker-a/{topic}/0@0" in refused(config, west)
    skipping = replace(config, skip=frozenset({f"broker-a/{topic}/0@0"}))
    state = run(skipping, west)
    assert (state.counts["skipped"], state.skipped) == (1, [f"broker-a/{topic}/0@0"])
    assert bodies(west, topic) == [[b"v0"], [b"v1"]], "what the refused run had sent is not there twice"
    assert "found the clusters ('east', 'north')" in refused(replace(config, target="north"), west)
    assert "found copies from 'east' in queue broker-a/" in refused(replace(config, folder=tmp_path / "two"), west)
    with FILES.alone(config.folder):
        assert "found another mirror" in refused(config, west)
    whole = read_mirror(config.folder)
    assert whole is not None
    queue = f"{topic}@broker-a/0"
    save_mirror(config.folder, replace(whole, next_offsets=whole.next_offsets | {queue: 9}))
    assert "the target is ahead of its source" in refused(config, west)
    save_mirror(config.folder, replace(whole, targets=whole.targets | {queue: 9}))
    assert "expected 9 or more, which the mirror has sent" in refused(config, west)
    save_mirror(config.folder, replace(whole, queues={topic: ["broker-a/0", "broker-a/7"]}))
    assert "found no queue broker-a/7" in refused(config, west)
    assert run(replace(config, takes_new_queues=True), west).queues == {topic: ["broker-a/0", "broker-a/1"]}


def test_lost_messages(
    topic: str, east: Embedded, west: Embedded, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the source deleted before it was read stops the mirror, until that is accepted; the number is kept."""
    create(east, topic)
    create(west, topic)
    send(east, topic, numbered(topic, 6))
    config = configured(east, tmp_path, topic)
    queue = f"{topic}@broker-a/0"
    run(config, west)
    known = read_mirror(tmp_path)
    assert known is not None
    send(east, topic, numbered(topic, 6, first=6))
    plain = MirrorSource.ranges

    async def later(self: MirrorSource, topics: list[str]) -> SourceRanges:
        found = await plain(self, topics)
        return found._replace(
            found={one: (5 if one.queue_id == 0 else first, end) for one, (first, end) in found.found.items()}
        )

    monkeypatch.setattr(MirrorSource, "ranges", later)
    assert "the source deleted 2 messages before they were read" in refused(config, west)
    state = run(replace(config, may_lose=True), west)
    assert (state.lost, state.counts) == ({queue: 2}, {"copied": 10})


def test_a_source_that_is_away(topic: str, east: Embedded, west: Embedded, tmp_path: Path) -> None:
    """It is tried again for a time; then the run ends, and goes on later."""
    create(east, topic)
    create(west, topic)
    send(east, topic, numbered(topic, 2))
    config = configured(east, tmp_path, topic)
    assert "no progress for 0 s: check that the source runs" in refused(replace(config, namesrv="127.0.0.1:9"), west)
    assert run(config, west).counts == {"copied": 2}


def test_pulls_that_fail_each_time(
    topic: str, east: Embedded, west: Embedded, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That the source answers other questions is no progress."""
    create(east, topic)
    create(west, topic)
    send(east, topic, numbered(topic, 2))

    async def pull(self: MirrorSource, queue: MessageQueue, offset: int, end: int) -> QueuePart:
        raise ClusterAway("a pull failed")

    async def ended() -> None:
        async with asyncio.timeout(20):
            config = replace(configured(east, tmp_path, topic), retry_ms=50)
            await Mirror(config, west.namesrv_address, ProducerConfig()).run()

    monkeypatch.setattr(MirrorSource, "_pull", pull)
    with pytest.raises(MirrorError, match="a pull failed; no progress for 0 s"):
        asyncio.run(ended())


@pytest.mark.parametrize(("follows", "expected"), [(False, [1, 1]), (True, [1, 1, 2, 2])])
def test_reading(
    topic: str,
    east: Embedded,
    monkeypatch: pytest.MonkeyPatch,
    follows: bool,
    expected: list[int],
) -> None:
    """To the ends that are known, or on to those that the replies tell; at the time limit, no pull is thrown away."""
    create(east, topic)
    send(east, topic, numbered(topic, 8))
    clock = SimpleNamespace(monotonic=lambda: 0.0)
    monkeypatch.setattr("mqtrail.mirror.source.time", clock)
    monkeypatch.setattr("mqtrail.mirror.source.PULL_COUNT", 2)
    asked, pull = list[int](), MirrorSource._pull

    async def counted(self: MirrorSource, queue: MessageQueue, offset: int, end: int) -> QueuePart:
        asked.append(offset)
        return await pull(self, queue, offset, end)

    monkeypatch.setattr(MirrorSource, "_pull", counted)

    async def counts() -> list[int]:
        async with Admin(east.namesrv_address) as admin:
            queues = [MessageQueue(topic, "broker-a", number) for number in range(2)]
            found = []
            reading = MirrorSource(admin).read(dict.fromkeys(queues, 0), dict.fromkeys(queues, 1), 1.0, follows=follows)
            async for part in reading:
                found.append(len(part.messages))
                if len(found) == 2:
                    clock.monotonic = lambda: 2.0
            return found

    assert asyncio.run(counts()) == expected
    assert len(asked) == len(expected)


def test_large_bodies(
    topic: str, east: Embedded, west: Embedded, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a pull expands to is bounded; what is beyond is pulled again."""
    create(east, topic, 1)
    create(west, topic, 1)
    send(east, topic, [(0, Message(topic, b"%d" % number * 8_000)) for number in range(5)])
    monkeypatch.setattr("mqtrail.mirror.source.EXPANDED_SIZE", 17_000)

    async def counts() -> list[int]:
        async with Admin(east.namesrv_address) as admin:
            queue = MessageQueue(topic, "broker-a", 0)
            parts = MirrorSource(admin).read({queue: 0}, {queue: 5}, inf, follows=False)
            return [len(part.messages) async for part in parts]

    assert asyncio.run(counts()) == [2, 2, 1]
    assert run(configured(east, tmp_path, topic), west).counts == {"copied": 5}
    assert bodies(west, topic) == bodies(east, topic)
