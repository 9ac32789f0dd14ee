"""People's ways through a console with accounts: log-in, refused roles, hidden bodies, a session that ends."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from mqtrail.answers.access import Accounts, Grant
from mqtrail.answers.changes import read_audit
from mqtrail.broker import BrokerConfig
from mqtrail.client import SyncProducer
from mqtrail.testing import embedded
from mqtrail.wire import Message
from tests.browser.conftest import Visit
from tests.console.serving import console

pytestmark = pytest.mark.browser
Begin = Callable[..., Visit]
PASSWORD = "correct horse battery"


@dataclass(frozen=True)
class Guarded:
    """A console with accounts over a live broker with one message."""

    url: str
    msg_id: str
    accounts: Accounts
    audit_log: Path


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    data = tmp_path_factory.mktemp("accounts")
    accounts = Accounts(data / "console-users.json")
    for name, role in (("viewer", "viewer"), ("operator", "operator"), ("leaver", "viewer")):
        accounts.add(name, (Grant.parse(role),), PASSWORD)
    with embedded(broker=BrokerConfig(trace_topic_enable=True)) as broker:
        with SyncProducer("shop", broker.namesrv_address, trace=True) as producer:
            msg_id = producer.send(Message("orders", b"secret socks", keys=["order-1"])).msg_id
        with console(None, broker.namesrv_address, "--allow-changes", data=data) as url:
            yield Guarded(url, msg_id, accounts, data / "audit.jsonl")


def log_in(tab: Visit, name: str, password: str = PASSWORD) -> None:
    tab.page.fill("input[name=name]", name)
    tab.page.fill("input[name=password]", password)
    tab.page.get_by_role("button", name="Log in").click()


def test_a_viewer_logs_in_and_sees_no_body(guarded: Guarded, visit: Begin) -> None:
    """A link leads through the log-in to its page; the body is hidden, changes are refused; then the log-out."""
    tab = visit(guarded.url)
    tab.page.goto(f"{guarded.url}/message?id={guarded.msg_id}")
    assert tab.violations() == []
    tab.shot("log-in")
    log_in(tab, "viewer", "wrong")
    tab.wait_for("User name or password is wrong.")
    assert tab.violations() == []
    log_in(tab, "viewer")
    tab.page.wait_for_url("**/message?id=*")
    while "the body is hidden" not in tab.text():  # the trace arrives after its message
        tab.open(f"/message?id={guarded.msg_id}")
    assert "secret socks" not in tab.page.content()
    assert "order-1" in tab.text()
    tab.open("/alerts")
    tab.wait_for("no rule was ever checked")
    assert "Cannot tell" in tab.text()
    tab.shot("alerts")
    assert tab.violations() == []
    tab.open("/client?group=billing&id=none")
    tab.wait_for("found no member 'none' of group 'billing' online")
    assert tab.page.get_by_role("button", name="Show the stacks of its threads").count() == 0
    tab.open("/change?action=delete-topic&topic=orders")
    tab.wait_for("expected one with the right to administer")
    assert tab.page.get_by_role("button", name="Change the cluster now").is_visible() is False
    tab.open("/audit")
    tab.wait_for("expected one with the right to administer")
    tab.page.get_by_role("button", name="Log out").click()
    tab.page.wait_for_url("**/login")
    tab.page.goto(f"{guarded.url}/groups")
    tab.page.wait_for_url("**/login?to=**")


def test_an_operator_does_what_is_allowed_and_is_named(guarded: Guarded, visit: Begin) -> None:
    """It resets offsets; a setting is refused; the audit log has the name."""
    tab = visit(guarded.url)
    tab.page.goto(f"{guarded.url}/account")
    log_in(tab, "operator")
    tab.page.wait_for_url("**/account")
    assert "operator" in tab.page.inner_text("main")
    assert tab.violations() == []
    tab.shot("account")
    tab.open("/change?action=set-broker-settings&broker=broker-a&setting=fileReservedTime&value=49")
    tab.wait_for("expected one with the right to administer")
    tab.open("/group?name=billing")
    assert tab.page.locator("form [value=set-offset]").count() == 1
    assert tab.page.locator("form [value=set-group]").count() == 0
    tab.open("/change?action=reset-offsets&group=billing&topic=orders&to=first")
    tab.page.get_by_role("button", name="Change the cluster now").click()
    tab.page.get_by_role("link", name="Audit log").wait_for()
    changes = read_audit(guarded.audit_log).changes
    assert (changes[0].who, changes[0].action, changes[0].door) == ("operator", "reset-offsets", "page")


def test_an_open_page_ends_with_its_session(guarded: Guarded, visit: Begin) -> None:
    """A page that refreshes itself shows nothing more after its user was removed: it leads to the log-in."""
    tab = visit(guarded.url)
    tab.page.goto(f"{guarded.url}/groups")
    log_in(tab, "leaver")
    tab.page.wait_for_url("**/groups")
    tab.loaded()
    guarded.accounts.remove("leaver")
    tab.page.wait_for_url("**/login?to=**", timeout=60_000)


def test_the_policy_of_pages_stops_smuggled_scripts(guarded: Guarded, visit: Begin) -> None:
    """Scripts run by a nonce: one that gets into the page some other way does not."""
    tab = visit(guarded.url)
    tab.page.goto(f"{guarded.url}/")
    log_in(tab, "viewer")
    tab.page.wait_for_url(f"{guarded.url}/")
    tab.loaded()
    ran = tab.page.evaluate(
        "() => { const one = document.createElement('script'); one.textContent = 'window.smuggled = 1';"
        " document.body.append(one); return window.smuggled ?? 0; }"
    )
    assert ran == 0
