"""`mqtrail mirror` and `cluster import` between Apache's broker and ours, in both directions."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest
from interop.apache import ApacheCluster
from tests.cli.conftest import commands
from tests.waiting import wait_until

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
from mqtrail.mirror import (
    ClusterImport,
    ImportStep,
    Mirror,
    MirrorConfig,
    MirroredOffsets,
    MirrorState,
    mirrored_offsets,
    read_export,
)
from mqtrail.testing import embedded
from mqtrail.wire import SubscriptionGroupConfig, TopicConfig

pytestmark = [pytest.mark.interop, pytest.mark.timeout(240)]

_AUTH = "org.apache.rocketmq.auth"
ACCESS = {
    "authenticationMetadataProvider": f"{_AUTH}.authentication.provider.LocalAuthenticationMetadataProvider",
    "authorizationMetadataProvider": f"{_AUTH}.authorization.provider.LocalAuthorizationMetadataProvider",
}
PATIENT = ProducerConfig(send_timeout_ms=10_000)


@dataclass(frozen=True, slots=True)
class Side:
    """A cluster by its name for the mirror."""

    name: str
    namesrv: str


@pytest.fixture(scope="module")
def sides(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Side]]:
    with ExitStack() as stack:
        cluster = stack.enter_context(ApacheCluster("5.3.3", tmp_path_factory.mktemp("apache"), properties=ACCESS))
        ours = stack.enter_context(embedded())
        yield {
            "apache": Side("apache", cluster.namesrv_address),
            "mqtrail": Side("mqtrail", ours.namesrv_address),
        }


def imported(target: Side, export: str, *, apply: bool) -> list[ImportStep]:
    async def run() -> list[ImportStep]:
        async with Admin(target.namesrv) as admin:
            one = ClusterImport(admin, read_export(export), passwords={"ann": "secret-of-ann"})
            steps = await one.plan()
            return await one.apply(steps, may_change=True) if apply else steps

    return asyncio.run(run())


def mirrored(source: Side, target: Side, topic: str, folder: Path) -> MirrorState:
    config = MirrorConfig(
        source=source.name,
        target=target.name,
        topics=(topic,),
        folder=folder,
        namesrv=source.namesrv,
        instance=InstanceConfig(),
        is_once=True,
        retry_ms=60_000,
    )
    return asyncio.run(Mirror(config, target.namesrv, PATIENT).run())


def found_in(side: Side, topic: str) -> list[list[MessageExt]]:
    with SyncAdmin(side.namesrv) as admin:
        return [list(admin.messages_of_queue(queue, 0, admin.max_offset(queue))) for queue in admin.queues(topic)]


@pytest.mark.parametrize(("of", "to"), [("apache", "mqtrail"), ("mqtrail", "apache")])
def test_a_cluster_moves(
    of: str, to: str, sides: dict[str, Side], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Its topics, groups, users and policies; its messages, as they are; a group; and nothing comes back."""
    source, target = sides[of], sides[to]
    topic, group = f"orders-{of}", f"billing-{of}"
    with SyncAdmin(source.namesrv) as admin:
        assert admin.create_topic(TopicConfig(topic, 2, 2, attributes={"message.type": "NORMAL"})).complete
        assert admin.create_group(SubscriptionGroupConfig(group, retry_max_times=3)).complete
        if of == "apache":
            assert admin.create_user("ann", "secret-of-ann").complete
            assert admin.create_acl("User:ann", [f"Topic:{topic}"], ["Pub", "Sub"]).complete
        wait_until(lambda: topic in admin.topics())
        with SyncProducer("PG", source.namesrv, config=PATIENT) as producer:
            for number in range(100):
                message = Message(
                    topic, b"body %d" % number, tags="A", keys=f"k{number}", properties={"x": "é"}, flag=number
                )
                producer.send(message, queue=MessageQueue(topic, "broker-a", number % 2))
        admin.set_offset(group, MessageQueue(topic, "broker-a", 0), 30)
        admin.set_offset(group, MessageQueue(topic, "broker-a", 1), 50)
    exported = commands(capsys)("cluster", "export", "--namesrv", source.namesrv)
    assert exported.code == 0, exported.err
    assert "secret-of-ann" not in exported.out
    done = imported(target, exported.out, apply=True)
    assert [one for one in done if one.error or one.action == "conflict"] == []
    assert {one.action for one in imported(target, exported.out, apply=False)} == {"equal"}
    with SyncAdmin(target.namesrv) as admin:
        wait_until(lambda: topic in admin.topics())

    state = mirrored(source, target, topic, tmp_path / "there")
    assert (state.counts, state.lag()) == ({"copied": 100}, 0)
    for ones, copies in zip(found_in(source, topic), found_in(target, topic), strict=True):
        assert len(ones) == 50
        for one, copy in zip(ones, copies, strict=True):
            assert (copy.body, copy.keys, copy.tags, copy.flag) == (one.body, one.keys, one.tags, one.flag)
            assert (copy.msg_id, copy.properties["x"]) == (one.msg_id, "é")
            assert copy.properties["MIRROR_BORN"] == str(one.born_timestamp_ms)
    assert mirrored(target, source, topic, tmp_path / "back").counts == {"looped": 100}

    async def moved() -> list[list[int | None]]:
        async with Admin(source.namesrv) as there, Admin(target.namesrv) as here:
            wanted = MirroredOffsets(folder=tmp_path / "there", group=group, target_group=group, is_applied=True)
            return [[queue.after for queue in one.queues] for one in await mirrored_offsets(wanted, there, here)]

    assert asyncio.run(moved()) == [[30, 50]]
