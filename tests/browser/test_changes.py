"""People's ways through changes: look, do, see what came of it, find it in the audit log."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from mqtrail.answers.changes import read_audit
from mqtrail.broker import BrokerConfig
from mqtrail.client import ConsumeFromWhere, ConsumerConfig, SyncAdmin, SyncConsumer, SyncProducer
from mqtrail.testing import embedded
from mqtrail.wire import (
    TRANS_CHECK_MAX_TIME_TOPIC,
    Message,
    SubscriptionGroupConfig,
    TopicConfig,
    dlq_topic,
    retry_topic,
)
from tests.answers.lakes import id_of, make_lake, rows_of
from tests.answers.test_waiting import transact
from tests.browser.conftest import Visit
from tests.console.serving import console
from tests.waiting import wait_until

pytestmark = pytest.mark.browser
Begin = Callable[..., Visit]
QUICK = ConsumerConfig(
    consume_from=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET, rebalance_ms=50, offset_persist_ms=20, close_wait_ms=200
)
DO_IT = "Change the cluster now"
PHONE = {"width": 360, "height": 800}


@dataclass(frozen=True)
class Changing:
    """A console that may change its cluster: one dead letter of `billing`, three messages that it consumed."""

    url: str
    namesrv: str
    admin: SyncAdmin
    dead: str
    audit_log: Path


@pytest.fixture(scope="module")
def changing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Changing]:
    path = tmp_path_factory.mktemp("changing") / "audit.jsonl"
    lake = tmp_path_factory.mktemp("changing") / "lake"
    make_lake(lake, rows_of(["dead, attempts exhausted"]))
    config = BrokerConfig(
        trace_topic_enable=True, transaction_timeout_ms=1, transaction_check_ms=50, transaction_op_delay_ms=0
    )
    with embedded(broker=config) as broker:
        namesrv = broker.namesrv_address
        with SyncAdmin(namesrv) as admin:
            assert admin.create_topic(TopicConfig("orders", 1, 1)).complete
            wait_until(lambda: "orders" in admin.topics())
            with (
                SyncProducer("shop", namesrv, trace=True) as producer,
                SyncConsumer("billing", namesrv, {"orders": "*"}, trace=True, config=QUICK) as consumer,
            ):
                dead = producer.send(Message("orders", b"bad", keys=["<b>bad</b>"])).msg_id
                for number in range(3):
                    producer.send(Message("orders", b"%d" % number))
                for _ in range(4):
                    delivery = consumer.receive(60_000)
                    assert delivery is not None
                    if delivery.msg_id == dead:
                        delivery.retry(-1, "card declined")
                    else:
                        delivery.ack()
                wait_until(lambda: dlq_topic("billing") in admin.topics() and retry_topic("billing") in admin.topics())
                wait_until(lambda: list(admin.messages(dlq_topic("billing"))))
            options = ("--allow-changes", "--audit-log", str(path))
            with console(lake, namesrv, *options) as url:
                yield Changing(url, namesrv, admin, dead, path)


def test_a_dead_letter_is_sent_again_and_followed(changing: Changing, visit: Begin) -> None:
    """The plan changes nothing; after the button each letter has its result, then its new verdict."""
    tab = visit(changing.url)
    tab.open(f"/change?action=resend-dead-letters&group=billing&id={changing.dead}")
    for words in (changing.dead, "%RETRY%billing", "SEND_MESSAGE_V2 (310)"):
        tab.wait_for(words)
    assert list(changing.admin.messages(retry_topic("billing"))) == []
    assert tab.violations() == []
    tab.shot("change-plan")
    tab.page.get_by_role("button", name=DO_IT).click()
    tab.wait_for("✔ done")
    assert len(list(changing.admin.messages(retry_topic("billing")))) == 1
    assert len(list(changing.admin.messages(dlq_topic("billing")))) == 1
    with SyncConsumer("billing", changing.namesrv, {"orders": "*"}, trace=True, config=QUICK) as consumer:
        delivery = consumer.receive(60_000)
        assert delivery is not None
        assert delivery.msg_id == changing.dead
        with delivery.process():
            pass
    tab.page.wait_for_function("document.body?.innerText.includes('CONSUMED')", timeout=60_000)
    assert tab.violations() == []
    tab.shot("change-followed")
    tab.page.get_by_role("link", name="Audit log").click()
    tab.page.wait_for_url("**/audit")
    tab.wait_for("resend-dead-letters")
    assert tab.violations() == []
    tab.shot("audit")
    assert read_audit(changing.audit_log).problems == ()


def test_offsets_are_reset_from_the_page_of_a_group(changing: Changing, visit: Begin) -> None:
    """It says how many messages are consumed again before it moves the group; in Chinese."""
    tab = visit(changing.url, locale="zh-CN")
    tab.open("/group?name=billing")
    form = tab.page.locator("form", has=tab.page.locator("[name=to]"))
    form.locator("[name=topic]").fill("orders")
    form.locator("[name=to]").fill("first")
    assert tab.violations() == []
    form.get_by_role("button").click()
    tab.page.wait_for_url("**/change?action=reset-offsets&**")
    tab.wait_for("再次消费的消息: 4")
    assert tab.violations() == []
    tab.shot("change-reset-zh")
    (queue,) = changing.admin.queues("orders")
    assert changing.admin.consumer_offset("billing", queue) == 4
    tab.page.get_by_role("button", name="立即执行变更").click()
    tab.wait_for("✔ 成功")
    assert changing.admin.consumer_offset("billing", queue) == 0
    assert read_audit(changing.audit_log).changes[0].door == "page"
    changing.admin.create_group(SubscriptionGroupConfig("reader"))
    changing.admin.set_offset("reader", queue, 3)
    tab.open("/group?name=billing")
    tab.page.get_by_role("link", name="跳过 orders 中的堆积 …").wait_for()
    form = tab.page.locator("form", has=tab.page.locator("[name=source]"))
    form.locator("[name=source]").fill("reader")
    form.locator("[name=topic]").fill("orders")
    form.get_by_role("button").click()
    tab.page.wait_for_url("**/change?action=clone-offsets&**")
    tab.wait_for("跳过的消息: 3")
    tab.page.get_by_role("button", name="立即执行变更").click()
    tab.wait_for("✔ 成功")
    assert changing.admin.consumer_offset("billing", queue) == 3


def test_a_consumer_processes_a_message(changing: Changing, visit: Begin) -> None:
    """From the page of the message: the group's member is chosen, then it processes the message."""
    handled: list[bytes] = []
    with SyncConsumer("billing", changing.namesrv, {"letters": "*"}) as consumer:
        threading.Thread(target=consumer.run, args=(lambda one: handled.append(one.body),), daemon=True).start()
        wait_until(lambda: any(one.connection_set for one in changing.admin.group_connections("billing").values()))
        tab = visit(changing.url)
        link = tab.page.get_by_role("link", name="Have a consumer of billing process it …")
        deadline = time.monotonic() + 60
        tab.open(f"/message?id={changing.dead}")
        while link.count() == 0:
            assert time.monotonic() < deadline, "the trace did not arrive"
            tab.open(f"/message?id={changing.dead}")
        assert tab.violations() == []
        link.click()
        tab.wait_for("Choose the member that processes the message:")
        tab.page.locator("main li a").click()
        tab.page.get_by_role("button", name=DO_IT).click()
        tab.wait_for("CR_SUCCESS")
        tab.open("/group?name=billing")
        tab.page.locator("main td a[href^='/client']").click()
        tab.page.wait_for_url("**/client?group=billing&id=**")
        tab.loaded()
        tab.wait_for("broker-a/0")
        tab.page.get_by_role("button", name="Show the stacks of its threads").click()
        tab.page.locator("pre", has_text="thread").wait_for()
        assert tab.violations() == []
        tab.shot("client")
    assert handled == [b"bad"]


def test_a_topic_a_group_and_a_setting(changing: Changing, visit: Begin) -> None:
    """A topic is created, deleted with its messages counted; a group too; a setting is changed and read back."""
    tab = visit(changing.url)
    tab.open("/cluster")
    tab.page.fill("input[name=topic]", "parcels")
    assert tab.violations() == []
    tab.page.locator("form", has=tab.page.locator("[name=topic]")).get_by_role("button").click()
    tab.wait_for("read 8, write 8, rw")
    assert "parcels" not in changing.admin.topics()
    tab.page.get_by_role("button", name=DO_IT).click()
    tab.wait_for("✔ done")
    wait_until(lambda: "parcels" in changing.admin.topics())
    tab.open("/topic?name=parcels")
    assert tab.violations() == []
    tab.shot("topic-form")
    tab.page.get_by_role("link", name="Delete the topic …").click()
    tab.wait_for("Messages deleted: 0")
    tab.page.get_by_role("button", name=DO_IT).click()
    tab.wait_for("✔ done")
    tab.open("/cluster")
    tab.page.fill("input[name=group]", "shippers")
    tab.page.locator("form", has=tab.page.locator("[name=retries]")).get_by_role("button").click()
    tab.wait_for("16 retries, may consume")
    tab.page.get_by_role("button", name=DO_IT).click()
    tab.wait_for("✔ done")
    tab.open("/group?name=shippers")
    tab.page.get_by_role("link", name="Delete the group and its offsets …").click()
    tab.page.get_by_role("button", name=DO_IT).click()
    tab.wait_for("✔ done")
    tab.open("/broker?name=broker-a")
    tab.page.fill("input[name=setting]", "fileReservedTime")
    tab.page.fill("input[name=value]", "49")
    assert tab.violations() == []
    tab.page.get_by_role("button", name="Show what it will do").click()
    tab.wait_for("broker-a fileReservedTime")
    assert tab.violations() == []
    tab.page.get_by_role("button", name=DO_IT).click()
    tab.wait_for("reports 49")
    (address,) = changing.admin.masters().values()
    assert changing.admin.broker_config(address)["fileReservedTime"] == "49"


def test_what_waits_inside_brokers(changing: Changing, visit: Begin) -> None:
    """A timer is recalled, a given-up transaction asked about again, a group pops; in Chinese, and on a phone."""
    assert changing.admin.set_broker_config({"transactionCheckMax": "1"}).complete
    ids = transact(changing.namesrv)
    with SyncProducer("shop", changing.namesrv) as producer:
        timer = producer.send(Message("orders", b"x", keys=["<i>later"], delay_ms=1_800_000)).msg_id
    tab = visit(changing.url, viewport=PHONE)
    tab.open("/cluster")
    tab.page.get_by_role("link", name="Delayed messages", exact=True).click()
    tab.page.wait_for_url("**/delayed")
    for words in (timer, "<i>later", "within 1 h"):
        tab.wait_for(words)
    assert tab.violations() == []
    assert tab.page.evaluate("document.documentElement.scrollWidth") <= 360
    tab.shot("delayed")
    tab.page.get_by_role("link", name="Recall …").click()
    tab.wait_for("not delivered")
    assert tab.violations() == []
    tab.page.get_by_role("button", name=DO_IT).click()
    tab.wait_for("✔ done")
    tab.open("/delayed")
    tab.wait_for("timer, ℹ recalled")
    wait_until(lambda: TRANS_CHECK_MAX_TIME_TOPIC in changing.admin.topics())
    wait_until(lambda: list(changing.admin.messages(TRANS_CHECK_MAX_TIME_TOPIC)))
    assert changing.admin.set_broker_config({"transactionCheckMax": "1000"}).complete
    tab = visit(changing.url, locale="zh-CN", viewport=PHONE)
    tab.open("/transactions")
    for words in (ids["open"], ids["given up"], "payers", "1,000"):
        tab.wait_for(words)
    assert tab.violations() == []
    assert tab.page.evaluate("document.documentElement.scrollWidth") <= 360
    tab.shot("transactions-zh")
    tab.page.get_by_role("link", name="重新回查 …", exact=True).click()
    tab.wait_for("RESUME_CHECK_HALF_MESSAGE (323)")
    tab.page.get_by_role("button", name="立即执行变更").click()
    tab.wait_for("✔ 成功")
    tab.open("/transactions")
    tab.wait_for("已放回，等待中")
    tab = visit(changing.url)
    tab.open("/pops")
    tab.wait_for("All popped messages are acknowledged")
    tab.page.fill("input[name=group]", "workers")
    tab.page.fill("input[name=topic]", "orders")
    assert tab.violations() == []
    tab.shot("pops")
    tab.page.get_by_role("button", name="Show what it will do").click()
    tab.wait_for("brokers do not report the mode before")
    tab.page.get_by_role("button", name=DO_IT).click()
    tab.wait_for("✔ done")


def test_chosen_letters_lead_to_their_plan(changing: Changing, visit: Begin) -> None:
    """The lake's letters of one group can be chosen; what the cluster does not have is said before anything is done."""
    tab = visit(changing.url)
    tab.open("/dead-letters?group=CG")
    tab.page.get_by_role("checkbox", name="Send again").first.check()
    assert tab.violations() == []
    tab.shot("dead-letters-chosen")
    tab.page.get_by_role("button", name="Send the chosen letters again …").click()
    tab.page.wait_for_url(f"**/change?action=resend-dead-letters&group=CG&id={id_of('dead, attempts exhausted')}")
    tab.wait_for("found no dead letter of group 'CG' with these ids")
    assert tab.page.get_by_role("button", name=DO_IT).count() == 0


def test_a_console_without_changes_has_no_buttons(of_lake: str, visit: Begin) -> None:
    """They are off by default."""
    tab = visit(of_lake)
    tab.open("/dead-letters?group=CG")
    assert tab.page.locator("input[type=checkbox]").count() == 0
    assert tab.page.request.get(f"{of_lake}/change?action=reset-offsets").status == 404
    assert tab.page.request.get(f"{of_lake}/audit").status == 404


def test_an_edited_copy_of_a_dead_letter_is_sent(changing: Changing, visit: Begin) -> None:
    """Its body and properties are edited; what differs is shown first; the copy is sent, and the audit log has it."""
    tab = visit(changing.url, viewport=PHONE)
    place = f"broker-a/{dlq_topic('billing')}/0@0"
    tab.open(f"/edit?group=billing&place={place}")
    assert tab.page.get_by_label("Body").input_value() == "bad"
    tab.page.get_by_role("button", name="Show what it will do").click()
    tab.wait_for("found the body and the properties of the stored message, expected others")
    tab.page.get_by_label("Body").fill('{\n "card": "<b>good</b>"}')
    tab.page.get_by_label("TAGS").fill("mended")
    tab.page.get_by_label("Further property 1").fill("by")
    tab.page.get_by_label("Value 1").fill("ann")
    tab.page.get_by_role("button", name="Show what it will do").click()
    tab.wait_for("SHA-256")
    assert tab.violations() == []
    assert tab.page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    tab.shot("edit")
    tab.page.get_by_role("button", name=DO_IT).click()
    tab.wait_for("✔ done")
    wait_until(lambda: any(one.tags == "mended" for one in changing.admin.messages(retry_topic("billing"))))
    (copy,) = [one for one in changing.admin.messages(retry_topic("billing")) if one.tags == "mended"]
    assert (copy.msg_id, copy.body) == (changing.dead, b'{\n "card": "<b>good</b>"}')
    assert copy.properties["by"] == "ann"
    assert read_audit(changing.audit_log).changes[0].action == "resend-edited"
