"""People's ways through the console: look up, search, open, read; hostile names; a broker that dies."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from pathlib import Path
from urllib.parse import quote

import pytest

from mqtrail.answers.changes import read_audit
from tests.answers.lakes import id_of, make_lake, rows_of
from tests.browser.conftest import MARKUP, WAIT_MS, Live, Visit
from tests.console.serving import console
from tests.trail.incident_faults import FAULTS
from tests.trail.incident_lakes import IncidentLake, commit_all

pytestmark = pytest.mark.browser
Begin = Callable[..., Visit]
TRACE_S = 60.0
CHART = "getElement(+document.querySelector('.chart').id.slice(1)).chart"
PATHS = {
    "home": "/",
    "search": "/search?q=verdict:HUNG",
    "message": f"/message?id={id_of('hung')}",
    "incidents": "/incidents",
    "dead-letters": "/dead-letters",
    "pipeline": "/pipeline",
    "latency": "/latency",
}
LOOKS = {
    "light": {"color_scheme": "light", "viewport": {"width": 1400, "height": 900}},
    "dark": {"color_scheme": "dark", "viewport": {"width": 1400, "height": 900}},
    "phone": {"color_scheme": "light", "viewport": {"width": 360, "height": 740}, "locale": "zh-CN"},
    "wide": {"color_scheme": "dark", "viewport": {"width": 3840, "height": 2160}, "locale": "zh-CN"},
}


@pytest.mark.parametrize("look", LOOKS)
def test_every_page_in_every_look(of_lake: str, visit: Begin, look: str) -> None:
    """No violation of WCAG 2.2 AA, no sideways scrolling; the pictures are kept."""
    tab = visit(of_lake, **LOOKS[look])
    for name, path in PATHS.items():
        tab.open(path)
        assert tab.page.evaluate("document.documentElement.lang") == ("zh" if "locale" in LOOKS[look] else "en")
        assert tab.page.evaluate("document.documentElement.scrollWidth <= innerWidth"), name
        tab.shot(f"{name}-{look}")
        assert tab.violations() == [], name


def test_from_an_order_to_its_message(of_lake: str, visit: Begin) -> None:
    """Whoever has a key sees where the message is, and why."""
    tab = visit(of_lake)
    tab.open("/")
    tab.page.fill("#asked", "order-9")
    tab.page.press("#asked", "Enter")
    tab.page.wait_for_url("**/message?id=order-9")
    tab.loaded()
    assert "HUNG" in tab.text()
    assert "Take a stack dump of the named client" in tab.text()
    lanes = tab.page.locator(".lane .name").all_inner_texts()
    assert lanes[:3] == ["Producer PG", "Broker broker-a", "Group CG"]
    assert tab.page.locator(".bar.open").count() == 1


def test_messages_that_belong_together(visit: Begin, tmp_path: Path) -> None:
    """A message shows those with the same key; what they share leads to all that have it."""
    rows = rows_of(["hung", "send ok"])
    for relation in rows.values():
        for row in relation:
            row["cluster"] = "one"
    make_lake(tmp_path / "lake", rows)
    with console(tmp_path / "lake") as url:
        for locale, words in (("en-US", "Related messages"), ("zh-CN", "相关消息")):
            tab = visit(url, locale=locale)
            tab.open(f"/message?id={id_of('send ok')}")
            part = tab.page.get_by_role("region", name=words)
            part.get_by_role("link", name=id_of("hung")).wait_for()
            assert "SEND_OK" in part.inner_text()
            assert tab.violations() == []
        tab.open("/message?id=shared")
        assert not tab.page.get_by_role("heading", name=words).is_visible()  # several messages: none is the one
        tab.open(f"/message?id={id_of('send ok')}")
        part.get_by_role("link", name="Key shared").click()
        tab.page.wait_for_url("**/search?q=key%3A%22shared%22")
        tab.wait_for("2 条消息匹配")


def test_search_by_keyboard(of_lake: str, visit: Begin) -> None:
    """`/` searches, and the list completes; the address holds the conditions, and opens the same results in another
    tab."""
    tab = visit(of_lake)
    tab.open("/")
    tab.page.keyboard.press("/")
    options = tab.page.get_by_role("option")
    tab.page.keyboard.type("verdict:dead")
    options.get_by_text("DEAD_LETTERED").wait_for()
    tab.page.keyboard.press("ArrowDown")
    assert tab.page.get_attribute("#query", "aria-activedescendant") == options.first.get_attribute("id")
    assert tab.violations() == []
    tab.page.keyboard.press("Enter")
    tab.page.keyboard.type("gr")
    options.get_by_text("group:").wait_for()
    tab.page.keyboard.press("ArrowUp")
    tab.page.keyboard.press("Enter")
    options.get_by_text("CG2").wait_for()
    tab.page.keyboard.press("Escape")
    options.first.wait_for(state="hidden")
    tab.page.keyboard.type("CG")
    assert tab.page.input_value("#query") == "verdict:DEAD_LETTERED group:CG"
    tab.page.keyboard.press("Enter")
    tab.page.wait_for_url("**/search?q=**")
    tab.loaded()
    assert "1 messages match" in tab.text()
    tab.page.get_by_text("The same as a command").click()
    tab.wait_for("mqtrail search --group CG --status DEAD_LETTERED")
    other = visit(of_lake)
    other.open(tab.page.url.removeprefix(of_lake))
    assert other.page.locator("tbody a:not(.what)").all_inner_texts() == [id_of("dead, attempts exhausted")]
    other.page.locator("tbody a:not(.what)").first.click()
    other.wait_for("DEAD_LETTERED")
    assert id_of("dead, attempts exhausted") in other.page.url


def test_a_search_is_narrowed_and_saved(of_lake: str, visit: Begin) -> None:
    """A click on a value adds it to the conditions. A saved search is there in another tab, until it is deleted."""
    tab = visit(of_lake)
    tab.open("/search?q=group:CG")
    facets = tab.page.get_by_role("complementary", name="Narrow the search")
    assert facets.get_by_role("heading", level=3).all_inner_texts() == ["Verdict", "Topic", "Tag", "Broker", "Reason"]
    value = facets.get_by_role("listitem").filter(has_text="HUNG")
    assert value.inner_text().split() == ["HUNG", "1"]
    value.get_by_role("link").click()
    tab.page.wait_for_url("**/search?q=group%3ACG%20verdict%3AHUNG")
    tab.wait_for("1 messages match")
    tab.page.get_by_text("Saved searches (0)").click()
    tab.page.get_by_label("Name of this search").fill("stuck")
    tab.page.get_by_role("button", name="Save the search").click()
    tab.wait_for("Saved searches (1)")
    other = visit(of_lake, locale="zh-CN")
    other.open("/search")
    other.page.get_by_text("已保存的搜索 (1)").click()
    assert other.violations() == []
    other.page.get_by_role("link", name="stuck").click()
    other.page.wait_for_url("**/search?q=group%3ACG%20verdict%3AHUNG")
    other.page.get_by_text("已保存的搜索 (1)").click()
    other.page.get_by_role("button", name="删除: stuck").click()
    other.wait_for("已保存的搜索 (0)")


def test_what_is_typed_stays_when_the_page_is_redrawn(of_lake: str, visit: Begin) -> None:
    """Data that arrives redraws the page, and does not set the fields again."""
    tab = visit(of_lake)
    tab.page.goto(f"{of_lake}/search?q=group:CG", wait_until="commit")
    tab.page.wait_for_selector("#query")
    assert tab.page.input_value("#query") == "group:CG"
    tab.page.fill("#query", "typed")
    tab.loaded()
    assert tab.page.input_value("#query") == "typed"


def test_help_by_keyboard(of_lake: str, visit: Begin) -> None:
    """`?` opens the help, Escape closes it, g goes to the groups; letters in a field are letters."""
    tab = visit(of_lake)
    tab.open("/search")
    tab.page.keyboard.press("?")
    tab.page.wait_for_selector("dialog[open]")
    tab.page.keyboard.press("Escape")
    tab.page.wait_for_selector("dialog[open]", state="detached")
    tab.page.focus("#query")
    tab.page.keyboard.type("gh?")
    assert tab.page.input_value("#query") == "gh?"
    tab.page.evaluate("document.activeElement.blur()")
    tab.page.keyboard.press("g")
    tab.page.wait_for_url("**/groups")


def test_a_code_leads_to_its_definition(of_lake: str, visit: Begin) -> None:
    """`?` beside a code opens the page of all codes at this one, by keyboard too, in both languages."""
    tab = visit(of_lake)
    tab.open("/search?q=verdict:HUNG")
    what = tab.page.get_by_role("link", name="What HUNG means").first
    what.focus()
    tab.page.keyboard.press("Enter")
    tab.page.wait_for_url("**/verdicts#HUNG")
    tab.page.wait_for_selector("#HUNG:target")
    assert tab.page.evaluate("document.getElementById('HUNG').getBoundingClientRect().top < innerHeight")
    row = tab.page.get_by_role("row").filter(has=tab.page.locator("#HUNG"))
    for words in ("error", "has been running too long", "Take a stack dump", "trace of producers", "Search"):
        assert words in row.inner_text()
    assert tab.violations() == []
    tab.shot("verdicts")
    chinese = visit(of_lake, locale="zh-CN", viewport={"width": 360, "height": 740})
    chinese.open("/verdicts")
    chinese.wait_for("导出所示客户端的线程栈")
    assert chinese.page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert chinese.violations() == []


def test_open_incidents_are_on_the_first_page(visit: Begin, tmp_path: Path) -> None:
    """The largest of the last day; one that is muted is not."""
    made = IncidentLake(3, messages=6_000)
    FAULTS["bad host"].put(made, "G1a", 15)
    commit_all(made, tmp_path / "lake")
    with console(tmp_path / "lake", data=tmp_path / "data") as url:
        tab = visit(url)
        tab.open("/")
        part = tab.page.get_by_role("region", name="Open incidents")
        part.get_by_role("link").first.click()
        tab.page.wait_for_url("**/incident?id=*")
        tab.wait_for("BAD_HOST")
        tab.page.get_by_label("Why").fill("known")
        tab.page.get_by_role("button", name="Mute").click()
        tab.wait_for("muted by")
        tab.open("/")
        tab.wait_for("All incidents are muted.")
        assert tab.violations() == []


def test_a_search_that_is_wrong(of_lake: str, visit: Begin) -> None:
    """The page says what was found and what was expected."""
    tab = visit(of_lake)
    tab.open("/search?q=verdict:GONE")
    assert "verdict: found 'GONE', expected one of" in tab.text()


def test_names_of_messages_are_text(of_lake: str, visit: Begin) -> None:
    """Markup in a key is shown and not run; characters that reorder text are shown as escapes."""
    tab = visit(of_lake)
    for path in (f"/message?id={quote(MARKUP)}", f"/search?q={id_of('send ok')}"):
        tab.open(path)
        assert MARKUP in tab.text()
        assert "\\u202egnp.exe" in tab.text()
        assert tab.page.locator("main img").count() == 0


def test_times_are_in_the_zone_of_the_reader(of_lake: str, visit: Begin) -> None:
    """Already on the first page; on hover in UTC, with the age."""
    tab = visit(of_lake, timezone_id="Asia/Shanghai")
    tab.open(f"/message?id={id_of('hung')}")
    shown = tab.page.locator("tbody time").first
    hover = shown.get_attribute("title") or ""
    utc = datetime.fromisoformat(hover.split(" UTC, ")[0])
    assert datetime.fromisoformat(shown.inner_text()) - utc == timedelta(hours=8)
    assert hover.endswith(" ago")
    tab.page.keyboard.press("?")
    tab.wait_for("Times are in the zone Asia/Shanghai")


def test_downloads(of_lake: str, visit: Begin) -> None:
    """CSV and JSON lines have what is shown."""
    tab = visit(of_lake)
    tab.open("/search?q=verdict:HUNG")
    for label, expected in (("CSV", '"msg_id","topic"'), ("JSON lines", '{"msg_id": ')):
        with tab.page.expect_download() as download:
            tab.page.get_by_role("button", name=label).click()
        content = download.value.path().read_text("utf-8")
        assert content.startswith(expected)
        assert id_of("hung") in content


def test_language_and_theme_are_kept(of_lake: str, visit: Begin) -> None:
    """They change by a click, on the same page, and stay."""
    tab = visit(of_lake)
    tab.open("/search?q=verdict:HUNG")
    tab.page.get_by_role("link", name="中文").click()
    tab.wait_for("条消息匹配")
    assert tab.page.url.endswith("/search?q=verdict:HUNG")
    tab.page.get_by_role("link", name="浅色或深色").click()
    tab.page.wait_for_selector("body.body--dark")
    tab.open("/")
    assert "首页" in tab.text()
    assert tab.page.locator("body.body--dark").count() == 1


def test_a_question_as_command_and_request(of_lake: str, visit: Begin) -> None:
    """What a page shows can be asked again by a command or over HTTP; a button copies either."""
    tab = visit(of_lake, permissions=["clipboard-read", "clipboard-write"])
    tab.open(f"/message?id={quote(MARKUP)}")
    tab.page.get_by_text("The same as a command").click()
    command, request = tab.page.locator("details pre").all_inner_texts()[:2]
    assert command.startswith(f"mqtrail trace '{MARKUP}' --lake ")
    assert request == f"curl -s '{of_lake}/api/v1/trace?id={quote(MARKUP, safe='')}'"
    tab.page.get_by_role("button", name="Copy").nth(1).click()
    assert tab.page.evaluate("navigator.clipboard.readText()") == request


def test_the_slowest_messages(of_lake: str, visit: Begin) -> None:
    """Latency says how long each part takes; a click leads to the messages of the slowest handlers."""
    tab = visit(of_lake)
    tab.open("/latency")
    for words in ("visible to first delivery", "99th percentile"):
        tab.wait_for(words)
    tab.page.get_by_role("link", name="handler from 9 ms").first.click()
    tab.wait_for("7 messages match")


def test_a_range_of_the_first_page(of_lake: str, visit: Begin) -> None:
    """Drawn over the chart, or typed: both lead to its messages with a problem. The sources of the lake have an age."""
    tab = visit(of_lake)
    tab.open("/")
    tab.wait_for("samples of the cluster")
    chart = tab.page.locator(".chart canvas").first
    chart.scroll_into_view_if_needed()
    box = chart.bounding_box()
    assert box is not None
    tab.page.wait_for_function(f"{CHART}?.isBrushed")
    tab.page.mouse.move(box["x"] + 60, box["y"] + 120)
    tab.page.mouse.down()
    tab.page.mouse.move(box["x"] + box["width"] / 2, box["y"] + 130, steps=4)
    tab.page.mouse.move(box["x"] + box["width"] - 20, box["y"] + 130, steps=4)
    tab.page.mouse.up()
    tab.page.wait_for_url("**/search?q=verdict%3A**from%3A**to%3A**")
    tab.wait_for("messages match")
    tab.open("/")
    tab.page.wait_for_function(f"{CHART}?.isBrushed")
    x, y = tab.page.evaluate(
        f"""() => {{ const data = {CHART}.getOption().series[0].data, at = data.findIndex(one => one > 0);
        return {CHART}.convertToPixel({{seriesIndex: 0}}, [at, data[at] / 2]) }}"""
    )
    tab.page.locator(".chart").click(position={"x": x, "y": y})
    tab.page.wait_for_url("**/search?q=verdict%3A**from%3A**to%3A**")
    tab.open("/")
    tab.page.get_by_label("From").fill("2020-01-01T00:00:00")
    tab.page.get_by_role("button", name="Show the messages of this time").click()
    tab.page.wait_for_url("**/search?q=verdict%3A**from%3A1577836800000")


def test_a_chart_that_has_not_changed_is_not_drawn_again(of_lake: str, visit: Begin) -> None:
    """Else a range that a pointer draws over it, and its open table, would be gone at each refresh of the page."""
    tab = visit(of_lake)
    tab.open("/")
    tab.page.wait_for_function(f"{CHART}?.isBrushed")
    tables = "document.querySelectorAll('main table')"
    tab.page.evaluate(f"[document.querySelector('.chart'), ...{tables}].forEach(one => (one.isOld = true))")
    tab.page.wait_for_function(f"{tables}.length > 0 && [...{tables}].some(one => !one.isOld)", timeout=60_000)
    assert tab.page.evaluate("document.querySelector('.chart').isOld")


@pytest.fixture
def short_path() -> Iterator[Path]:
    """A folder for a lake whose path a picture of the docs shows."""
    with tempfile.TemporaryDirectory(prefix="lake-") as folder:
        yield Path(folder)


def test_an_incident_is_acknowledged_and_muted(visit: Begin, tmp_path: Path, short_path: Path) -> None:
    """From the list to the incident; a mute needs a reason, and what was typed stays when it is refused."""
    made = IncidentLake(3, messages=6_000)
    FAULTS["bad host"].put(made, "G1a", 15)
    commit_all(made, short_path / "shop")
    with console(short_path / "shop", data=tmp_path / "data") as url:
        tab = visit(url, viewport={"width": 1400, "height": 900})
        tab.open("/incidents")
        tab.wait_for("◌ not acknowledged")
        tab.page.locator("main td a[href^='/incident?']").first.click()
        tab.page.wait_for_url("**/incident?id=**")
        tab.wait_for("BAD_HOST")
        tab.page.get_by_role("button", name="Mute", exact=True).click()
        tab.wait_for("expected the reason of the mute")
        tab.page.get_by_label("Why").fill("10.2.0.0 is replaced")
        tab.page.get_by_label("Mute for").select_option("4 h")
        tab.page.get_by_role("button", name="Mute", exact=True).click()
        tab.wait_for("muted by 127.0.0.1 until")
        tab.page.get_by_role("button", name="Acknowledge").click()
        tab.wait_for("✔ acknowledged by 127.0.0.1")
        tab.page.wait_for_function("document.activeElement.innerText.startsWith('✔ acknowledged by')")
        tab.wait_for("10.2.0.0 is replaced")
        assert tab.violations() == []
        tab.shot("incident")
        tab.open("/incidents")
        tab.wait_for("✔ acknowledged by 127.0.0.1")
        tab.shot("incidents")
        assert tab.violations() == []
    changes = read_audit(tmp_path / "data" / "audit.jsonl").changes
    assert [one.action for one in changes] == ["acknowledge-incident", "mute-incident"]


def test_the_heat_map(of_lake: str, visit: Begin) -> None:
    """A cell leads to the slowest messages of its time; another part of the way has a map of its own."""
    tab = visit(of_lake)
    tab.open("/latency")
    tab.page.locator(".chart").click(position={"x": 500, "y": 80})
    tab.page.wait_for_url("**/search?q=**handler%3E9ms%20to%3A**")
    tab.wait_for("messages match")
    tab.open("/latency")
    tab.page.get_by_role("link", name="total", exact=True).click()
    tab.page.wait_for_url("**/latency?part=total")
    tab.loaded()
    tab.page.get_by_text("As a table, the slowest first").click()
    tab.page.get_by_role("region", name="As a table, the slowest first").get_by_text("orders").first.wait_for()


def test_rejected_records(of_lake: str, visit: Begin) -> None:
    """Pipeline lists the trace records that did not decode."""
    tab = visit(of_lake)
    tab.open("/pipeline")
    rejects = tab.page.get_by_role("region", name="Trace records that did not decode")
    assert rejects.locator("tbody tr").count() == 2
    tab.page.get_by_text("The same as a command").nth(1).click()
    tab.wait_for("mqtrail rejects --lake")
    assert tab.violations() == []


def test_two_spans_of_latency(of_lake: str, visit: Begin) -> None:
    """The address holds both spans; each stage has before, after and the difference, and the same as a command."""
    tab = visit(of_lake, timezone_id="Asia/Shanghai")
    tab.open("/latency?part=total")
    tab.page.get_by_label("From").fill("2023-11-15T06:00:00")
    tab.page.get_by_label("to", exact=True).fill("2023-11-15T07:00:00")
    tab.page.get_by_label("with the span that begins at").fill("2023-11-15T06:00:00")
    tab.page.get_by_role("button", name="Compare").click()
    tab.page.wait_for_url("**/latency?part=total&from=**&against=2023-11-15T06**")
    tab.loaded()
    compared = tab.page.get_by_role("region", name="Compare two spans")
    compared.get_by_text("10 ms → 10 ms (±0 ms)").first.wait_for()
    assert "2023-11-15 06:00:00 – 2023-11-15 07:00:00" in tab.text()
    tab.page.get_by_text("The same as a command").last.click()
    tab.wait_for("mqtrail latency --from 2023-11-14T22:00:00 --to 2023-11-14T23:00:00 --against 2023-11-14T22:00:00")
    assert tab.violations() == []
    tab.shot("latency-compared")
    tab.open("/latency?from=2023-11-15T06:00:00&to=2023-11-15T05:00:00&against=2023-11-14T06:00:00")
    tab.wait_for("the end after the begin")


def test_dead_letters(of_lake: str, visit: Begin) -> None:
    """An error leads to its letters, a letter to its message; the command that resends it is there to copy."""
    tab = visit(of_lake)
    tab.open("/")
    tab.page.keyboard.press("d")
    tab.page.wait_for_url("**/dead-letters")
    tab.loaded()
    tab.page.get_by_role("link", name="unknown").click()
    tab.page.wait_for_url("**/dead-letters?group=CG&topic=orders&error=")
    tab.loaded()
    tab.page.get_by_text("Command", exact=True).click()
    tab.wait_for(f"mqtrail message resend CG --id {id_of('dead, attempts exhausted')}")
    tab.page.get_by_role("link", name=id_of("dead, attempts exhausted")).click()
    tab.wait_for("DEAD_LETTERED")


def test_a_cluster_and_what_can_be_traced(live: Live, visit: Begin) -> None:
    """Brokers with counters, topics, groups; what doctor says. A topic leads to its messages, a group to its lag."""
    tab = visit(live.url)
    tab.open("/")
    tab.page.keyboard.press("c")
    tab.page.wait_for_url("**/cluster")
    tab.loaded()
    for words in ("broker-a", "orders", "8 to read, 8 to write", "billing", "16"):
        tab.wait_for(words)
    tab.page.get_by_text("Counters: broker-a / 0").click()
    tab.wait_for("putTps")
    assert tab.page.get_by_role("link", name="orders", exact=True).get_attribute("href") == "/topic?name=orders"
    assert tab.violations() == []
    tab.shot("cluster-live")
    tab.page.get_by_role("link", name="DefaultCluster / broker-a / 0").click()
    tab.wait_for("fileReservedTime")
    assert tab.violations() == []
    for page, path, words in (
        ("Replication", "/replication", "master"),
        ("Name servers", "/name-servers", "Setting"),
        ("Users and policies of the brokers", "/broker-access", "Policies"),
    ):
        tab.open("/cluster")
        tab.page.get_by_role("link", name=page, exact=True).click()
        tab.page.wait_for_url(f"**{path}")
        tab.loaded()
        tab.wait_for(words)
        assert tab.violations() == []
        tab.shot(path.strip("/"))
    tab.open("/topic?name=orders")
    tab.wait_for("4 to read, 4 to write")
    assert tab.page.get_by_role("link", name="Search", exact=True).nth(1).get_attribute("href") == (
        "/search?q=topic%3A%22orders%22"
    )
    assert tab.violations() == []
    tab.page.keyboard.press("p")
    tab.page.wait_for_url("**/pipeline")
    tab.loaded()
    for words in ("There is no lake", "RMQ_SYS_TRACE_TOPIC: exists", "DEAD_LETTERED"):
        tab.wait_for(words)
    assert tab.violations() == []
    tab.shot("pipeline-live")
    chinese = visit(live.url, locale="zh-CN")
    chinese.open("/pipeline")
    chinese.wait_for("它不向该集群写入任何内容")


def test_evidence_leads_to_its_record(live: Live, visit: Begin) -> None:
    """Each event names a record; a click reads it from the cluster. The trace follows its message after a while."""
    tab = visit(live.url)
    evidence = tab.page.get_by_role("link", name="trace:broker-a/")
    deadline = time.monotonic() + TRACE_S
    tab.open(f"/message?id={live.msg_id}")
    while evidence.count() == 0:
        assert time.monotonic() < deadline, "the trace did not arrive"
        tab.open(f"/message?id={live.msg_id}")
    evidence.first.click()
    tab.wait_for("Trace record")
    assert live.msg_id in tab.page.locator("main table").first.inner_text()
    assert tab.violations() == []
    tab.shot("stored-live")


COUNT_DRAWN = """() => {
    window.drawn = 0;
    const seen = (list) => { if (list.some((one) => one.addedNodes.length)) window.drawn += 1; };
    new MutationObserver(seen).observe(document.querySelector("main"), { childList: true, subtree: true }); }"""


def test_a_live_page_keeps_the_place_of_the_reader(live: Live, visit: Begin) -> None:
    """When a part is drawn again, focus and scroll stay, and what was closed stays closed; while text is selected it
    waits.
    """
    tab = visit(live.url, viewport={"width": 400, "height": 800})
    tab.open("/groups")
    scroll = tab.page.locator(".scroll").first
    scroll.evaluate("one => one.scrollTo(30, 0)")
    tab.page.get_by_role("link", name="billing", exact=True).focus()
    tab.page.evaluate(COUNT_DRAWN)
    tab.page.wait_for_function("window.drawn > 0", timeout=WAIT_MS)
    tab.page.wait_for_function("document.activeElement.textContent === 'billing'")
    assert scroll.evaluate("one => one.scrollLeft") == 30
    tab.page.evaluate("getSelection().selectAllChildren(document.querySelector('main h1'))")
    tab.wait_for("Live: waits while text is selected")
    tab.page.evaluate("getSelection().removeAllRanges()")
    tab.page.wait_for_function("!document.body.innerText.includes('waits while text')")
    tab.open("/alerts")
    tab.page.get_by_text("What was not searched, or is missing (1)").click()
    tab.page.evaluate(COUNT_DRAWN)
    tab.page.wait_for_function("window.drawn > 0", timeout=WAIT_MS)
    tab.page.get_by_text("no rule was ever checked").wait_for(state="hidden")


def test_a_live_broker_that_dies(live: Live, visit: Begin) -> None:
    """Body and lag come from the cluster. When the broker stops, the open page says so and keeps what it had."""
    tab = visit(live.url)
    tab.open(f"/message?id={live.msg_id}")
    tab.wait_for("<script>alert(1)</script>")
    assert tab.page.locator("main script").count() == 0
    tab.page.get_by_text("Hex", exact=True).click()
    tab.wait_for("00000000  7b 22 6e 61")
    assert tab.violations() == []
    tab.open("/groups")
    tab.wait_for("billing")
    tab.page.get_by_role("link", name="billing").click()
    tab.wait_for("waits-")
    assert "the group has no committed offset in this queue" in tab.text()
    assert tab.violations() == []
    tab.shot("group-live")
    tab.open("/groups")
    tab.wait_for("billing")
    live.broker.stop_broker("broker-a")
    tab.wait_for("found no master broker")
    assert "billing" in tab.text()
    assert "Below is the last answer" in tab.text()
    tab.shot("groups-broker-died")
