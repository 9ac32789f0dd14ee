"""People's ways through the pages of pmq mode: operators, owners, users; in both languages; bad input."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from mqtrail.answers.access import Accounts, Grant
from mqtrail.gateway import new_token
from mqtrail.testing import Embedded, embedded
from tests.browser.conftest import MARKUP, Visit
from tests.browser.test_accounts import PASSWORD, log_in
from tests.console.serving import console
from tests.waiting import wait_until

pytestmark = pytest.mark.browser
Begin = Callable[..., Visit]
ADMIN, ADMIN_HASH = new_token()
PORTAL, PORTAL_HASH = new_token()
PLAN, DO_IT = "Show what it would do", "Make this change now"
RULES = f"""
[topics.orders]
owners = ["bob"]
groups = ["stock", "billing"]
messages_per_s = 1000
[groups.stock]
owners = ["bob"]
allow = ["127.0.0.0/8", "10.0.0.0/8"]
deny = ["10.9.9.9"]
[operators.ann]
tokens = ["{ADMIN_HASH}"]
[operators.bob]
role = "user"
[operators.uma]
role = "user"
[operators.portal]
tokens = ["{PORTAL_HASH}"]
acts_for = true
"""
PAGES = {
    "/pmq": ("Backlog", "堆积"),
    "/pmq/topics": ("Topics", "主题"),
    "/pmq/topic?name=orders": ("Topic orders", "主题 orders"),
    "/pmq/queues": ("Queues", "队列"),
    "/pmq/nodes": ("Nodes", "节点"),
    "/pmq/groups": ("Groups", "消费组"),
    "/pmq/group?name=stock": ("Group stock", "消费组 stock"),
    "/pmq/subscriptions": ("Subscriptions", "订阅"),
    "/pmq/members": ("Members", "成员"),
    "/pmq/messages?topic=orders": ("Messages", "消息"),
    "/pmq/message?topic=orders&queue=0&offset=0": ("Message orders 0@0", "消息 orders 0@0"),
    "/pmq/send?topic=orders": ("Send a message", "发送消息"),
    "/pmq/count?topic=orders&from=1h": ("Count between times: orders", "统计时间段内的消息: orders"),
    "/pmq/failures?group=billing": ("Failures", "失败消息"),
    "/pmq/reports": ("Reports", "报表"),
    "/pmq/audit": ("Audit log", "审计日志"),
    "/pmq/lock": ("Lock", "锁"),
    "/pmq/rules": ("Roles and rules", "角色与规则"),
    "/pmq/change?action=set-offsets&group=stock&topic=orders&to=first": (
        "Move the offsets of a group",
        "移动消费组的位点",
    ),
}


@dataclass(frozen=True)
class Portal:
    """A door with messages, and consoles over it: of the admin ann, and of people who log in."""

    door: Embedded
    url: str
    people_url: str

    def ask(self, path: str, **query: Any) -> Any:
        """Return what the door answers to ann."""
        headers = {"Authorization": f"Bearer {ADMIN}"}
        answer = httpx.get(f"{self.door.http_url}/v1/operator/{path}", params=query, headers=headers, timeout=60)
        assert answer.status_code == 200, answer.text
        return answer.json()


def post(url: str, path: str, body: Any) -> Any:
    answer = httpx.post(url + path, json=body, headers={"Authorization": f"Bearer {ADMIN}"}, timeout=60)
    assert answer.status_code == 200, answer.text
    return answer.json()


def fill(url: str) -> None:
    """Store 12 messages of `orders`, of which the group `stock` read 5; two dead letters of the group `billing`."""
    for topic in ("orders", "other", "lost", "billing_orders_fail"):
        httpx.put(f"{url}/v1/topics/{topic}", json={"queues": 2 if topic == "orders" else 1}).raise_for_status()
    post(url, "/v1/operator/changes", {"action": "create-group", "group": "stock"})
    post(url, "/v1/operator/changes", {"action": "create-group", "group": "billing", "retries_max": 0})
    post(url, "/v1/topics/orders/messages", [{"body": f"order {n}", "key": f"order-{n}"} for n in range(10)])
    post(url, "/v1/topics/orders/messages", [{"body": MARKUP, "key": MARKUP, "tag": "<b>"}] * 2)
    post(url, "/v1/topics/other/messages", [{"body": "secret"}])
    post(url, "/v1/topics/lost/messages", [{"body": "a", "key": "lost-a"}, {"body": "b", "key": "lost-b"}])
    failed = {"body": "failed", "key": "tried", "headers": {"pmq_retryCount": "3"}}
    post(url, "/v1/topics/billing_orders_fail/messages", [failed])
    got = post(url, "/v1/groups/stock/receive", {"topic": "orders", "max": 5, "wait_s": 10})["messages"]
    post(url, "/v1/groups/stock/ack", {"receipts": [one["receipt"] for one in got]})
    lost = post(url, "/v1/groups/billing/receive", {"topic": "lost", "max": 2, "wait_s": 10})["messages"]
    nacks = {"receipts": [one["receipt"] for one in lost], "reason": "card declined", "delay_s": 1}
    post(url, "/v1/groups/billing/nack", nacks)
    headers = {"Authorization": f"Bearer {ADMIN}"}

    def are_dead() -> bool:
        """A receive finds that their deliveries are used up."""
        assert post(url, "/v1/groups/billing/receive", {"topic": "lost", "wait_s": 1})["messages"] == []
        found = httpx.get(f"{url}/v1/operator/groups/billing", headers=headers, timeout=60).json()
        return bool(found["dead_letters"] == 2)

    wait_until(are_dead)


@pytest.fixture(scope="module")
def portal(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Portal]:
    folder = tmp_path_factory.mktemp("portal")
    (folder / "rules.toml").write_text(RULES)
    for name, text in (("ann", ADMIN), ("portal", PORTAL)):
        (folder / name).write_text(text)
        (folder / name).chmod(0o600)
    accounts = Accounts(folder / "people" / "console-users.json")
    for name in ("bob", "uma", "stranger"):
        accounts.add(name, (Grant.parse("viewer"),), PASSWORD)
    store = f"sqlite:///{folder}/m.db"
    with ExitStack() as stack:
        door = stack.enter_context(
            embedded(folder / "data", store_url=store, http=True, http_rules=folder / "rules.toml")
        )
        fill(door.http_url)
        urls = [
            stack.enter_context(
                console(
                    None, "", "--pmq", door.http_url, "--token-file", str(folder / name), "--allow-changes", data=data
                )
            )
            for name, data in (("ann", folder / "alone"), ("portal", folder / "people"))
        ]
        yield Portal(door, *urls)


@pytest.mark.parametrize(("number", "locale"), [(0, "en"), (1, "zh-CN")])
def test_every_page_in_both_languages(portal: Portal, visit: Begin, number: int, locale: str) -> None:
    """Each has its heading, no part that failed, and nothing against WCAG; texts of messages stay texts."""
    tab = visit(portal.url, locale=locale)
    for path, headings in PAGES.items():
        tab.open(path)
        assert tab.page.inner_text("main h1") == headings[number], path
        assert tab.page.locator("main [role=alert]:visible").all_inner_texts() == [], path
        assert tab.violations() == [], path
        if path.startswith("/pmq/group?"):
            tab.shot("pmq-group" if locale == "en" else "pmq-group-zh")
    tab.open("/pmq/messages?topic=orders")
    assert MARKUP in tab.text()


def test_a_phone_shows_the_backlog(portal: Portal, visit: Begin) -> None:
    """Tables scroll by themselves; the page does not."""
    tab = visit(portal.url, viewport={"width": 360, "height": 800})
    tab.open("/pmq")
    assert tab.page.evaluate("document.documentElement.scrollWidth") <= 360
    assert tab.violations() == []


def test_the_backlog_counts_what_the_door_counts(portal: Portal, visit: Begin) -> None:
    (row,) = [one for one in portal.ask("subscriptions")["subscriptions"] if one["group"] == "stock"]
    tab = visit(portal.url)
    tab.open("/pmq")
    cells = tab.page.locator("tbody tr", has_text="stock").locator("td").all_inner_texts()
    assert cells[:5] == ["stock", "orders", "12", str(12 - row["pending"]), str(row["pending"])]
    tab.open("/pmq?show=online")
    assert "There is none." in tab.text()


def test_a_group_is_paused_and_its_offsets_move(portal: Portal, visit: Begin) -> None:
    """A plan changes nothing; the button does, and the audit log names who, before and afterwards."""
    tab = visit(portal.url)
    tab.open("/pmq/group?name=billing")
    tab.page.get_by_role("link", name="Pause …").click()
    tab.wait_for("paused, retries 0")
    assert "runs, retries 0" in tab.text()
    assert portal.ask("groups/billing")["paused"] is False
    tab.page.get_by_role("button", name=DO_IT).click()
    tab.wait_for("✔ done")
    assert portal.ask("groups/billing")["paused"] is True
    assert tab.violations() == []
    tab.open("/pmq/group?name=billing")
    form = tab.page.locator("form", has=tab.page.locator("[name=to]"))
    form.locator("[name=topic]").fill("orders")
    form.locator("[name=to]").fill("end")
    form.get_by_role("button", name=PLAN).click()
    tab.page.get_by_role("button", name=DO_IT).click()
    tab.wait_for("✔ done")
    places = portal.ask("groups/billing")["queues"]
    assert [one["pending"] for one in places if one["topic"] == "orders"] == [0, 0]
    tab.page.get_by_role("link", name="Audit log").last.click()
    tab.page.wait_for_url("**/pmq/audit")
    tab.wait_for("set-offsets")
    assert "ann" in tab.text()


def test_a_topic_is_made_read_only(portal: Portal, visit: Begin) -> None:
    """From the row of a queue, and back."""
    tab = visit(portal.url)
    for words, expected in (("Make the topic read only …", False), ("Let the topic take messages …", True)):
        tab.open("/pmq/queues?topic=other")
        tab.page.get_by_role("link", name=words).click()
        tab.page.get_by_role("button", name=DO_IT).click()
        tab.wait_for("✔ done")
        assert portal.ask("topics/other")["writable"] is expected


def test_a_dead_letter_is_sent_again(portal: Portal, visit: Begin) -> None:
    """One that the reader chose; then one of pmq's failure topic. Each has its outcome."""
    tab = visit(portal.url)
    tab.open("/pmq/failures?group=billing")
    assert "billing_orders_fail" in tab.text()
    box = tab.page.locator("main form input[name=id]").first
    letter = box.get_attribute("value")
    assert letter is not None
    box.check()
    tab.page.get_by_role("button", name="Send the chosen ones again …").click()
    tab.wait_for(letter)
    assert tab.page.locator("main tbody tr").count() == 1
    tab.page.get_by_role("button", name=DO_IT).click()
    tab.wait_for("✔ done")
    assert tab.violations() == []
    tab.open("/pmq/failures?group=billing")
    tab.page.get_by_role("link", name="billing_orders_fail").click()
    tab.page.get_by_role("link", name="Send all again …").click()
    tab.page.get_by_role("button", name=DO_IT).click()
    tab.wait_for("✔ done")
    assert portal.ask("topics/billing_orders_fail")["messages"] == 2


def test_a_message_is_sent(portal: Portal, visit: Begin) -> None:
    """Its body is in no address and in no line of the audit log."""
    tab = visit(portal.url)
    tab.open("/pmq/send?topic=other")
    tab.page.get_by_label("Body").fill("typed by hand")
    tab.page.get_by_label("Key").fill("by-hand")
    tab.page.get_by_role("button", name=PLAN).click()
    tab.wait_for("a message of 13 bytes")
    tab.page.get_by_role("button", name=DO_IT).click()
    tab.wait_for("✔ done")
    (row,) = portal.ask("topics/other/messages", key="by-hand")["messages"]
    assert row["size"] == 13
    assert "typed by hand" not in str(portal.ask("audit"))


def test_roles_are_checked_by_the_door(portal: Portal, visit: Begin) -> None:
    """An owner changes its group alone; a user sees no body; an account without rules sees nothing."""
    owner = visit(portal.people_url)
    owner.page.goto(f"{portal.people_url}/pmq/group?name=stock")
    log_in(owner, "bob")
    owner.page.wait_for_url("**/pmq/group?*")
    owner.loaded()
    owner.wait_for("You are bob: owner of orders, stock, may change these.")
    owner.page.get_by_role("link", name="Pause …").click()
    owner.page.get_by_role("button", name=DO_IT).click()
    owner.wait_for("✔ done")
    (change,) = portal.ask("audit", count=1)["changes"]
    assert (change["who"], change["door"], change["action"]) == ("bob", "http, portal", "pause-group")
    owner.open("/pmq/change?action=delete-topic&topic=other")
    owner.wait_for("expected an owner of the topic 'other' or an admin")
    assert owner.page.get_by_role("button", name=DO_IT).count() == 0
    owner.open("/pmq/message?topic=orders&queue=0&offset=0")
    assert "order" in owner.text()

    user = visit(portal.people_url)
    user.page.goto(f"{portal.people_url}/pmq/message?topic=other&queue=0&offset=0")
    log_in(user, "uma")
    user.page.wait_for_url("**/pmq/message?*")
    user.wait_for("expected an admin, an owner of the topic 'other'")
    assert "secret" not in user.page.content()
    user.open("/pmq/change?action=pause-group&group=stock&paused=false")
    user.wait_for("expected an owner of the group 'stock' or an admin")
    assert portal.ask("groups/stock")["paused"] is True

    stranger = visit(portal.people_url)
    stranger.page.goto(f"{portal.people_url}/pmq/topics")
    log_in(stranger, "stranger")
    stranger.page.wait_for_url("**/pmq/topics")
    stranger.wait_for("found no operator 'stranger' in the rules of this door")
    assert stranger.page.locator("main table").count() == 0
    assert stranger.violations() == []


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("/pmq/topic?name=none", "found no topic none"),
        ("/pmq/group?name=none", "found no group none"),
        ("/pmq/messages?topic=none", "found no topic none"),
        ("/pmq/messages?topic=orders&queue=x", "queue: found 'x', expected a number"),
        ("/pmq/message?topic=orders&queue=0&offset=999", "found no message at offset 999"),
        ("/pmq/change?action=drop", "action: found 'drop'"),
        ("/pmq/change?action=create-topic&topic=bad name&queues=2", "bad name"),
        ("/pmq/count?topic=orders&from=never", "never"),
    ],
)
def test_bad_input_is_refused_in_words(portal: Portal, visit: Begin, path: str, words: str) -> None:
    """The page says what was found, and shows no table."""
    tab = visit(portal.url)
    tab.open(path)
    tab.wait_for(words)
    assert tab.page.locator("main [role=alert]:visible").count() >= 1
    assert tab.page.locator("main [aria-live=polite] table").count() == 0


def test_a_wrong_token_and_a_door_that_is_gone(visit: Begin, tmp_path: Path) -> None:
    """Every part says why; no page shows an empty table."""
    (tmp_path / "rules.toml").write_text(RULES)
    (tmp_path / "wrong").write_text("wrong")
    (tmp_path / "ann").write_text(ADMIN)
    for name in ("wrong", "ann"):
        (tmp_path / name).chmod(0o600)
    store = f"sqlite:///{tmp_path}/m.db"
    with ExitStack() as stack:
        with embedded(tmp_path / "data", store_url=store, http=True, http_rules=tmp_path / "rules.toml") as door:
            wrong, right = (
                stack.enter_context(console(None, "", "--pmq", door.http_url, "--token-file", str(tmp_path / name)))
                for name in ("wrong", "ann")
            )
            tab = visit(wrong)
            tab.open("/pmq/topics")
            tab.wait_for("found another token, expected one of an operator")
            assert tab.page.locator("main table").count() == 0
            tab = visit(right)
            tab.open("/pmq/topics")
            tab.wait_for("You are ann: super admin")
        for path in ("/pmq", "/pmq/topics", "/pmq/nodes", "/pmq/audit", "/pmq/lock"):
            tab.open(path)
            tab.wait_for("found no answer from")
            assert tab.page.locator("main table").count() == 0
            assert tab.violations() == []
