"""The forms that save and remove a search, as a browser sends them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from mqtrail.answers import Sources
from mqtrail.answers.access import AccessConfig, AccessDesk, Accounts, Grant, PersonRole, SavedSearch, SavedSearches
from mqtrail.answers.changes import AuditLog
from mqtrail.answers.http import Workers, make_api
from mqtrail.console.frame import Desk
from mqtrail.console.saved import PATH, add_saved
from tests.answers.serving import serving

NAMES = ("ann", "bob")


@pytest.fixture
def saved(tmp_path: Path) -> SavedSearches:
    return SavedSearches(tmp_path / "searches.json")


@pytest.fixture
def url(tmp_path: Path, saved: SavedSearches) -> Iterator[str]:
    """A console whose proxy names the user."""
    config = AccessConfig(proxy_header="X-User", proxy_addresses=("127.0.0.1",))
    access = AccessDesk(config, Accounts(tmp_path / "users.json"), AuditLog(tmp_path / "audit.jsonl"))
    for name in NAMES:
        access.accounts.add(name, (Grant(PersonRole.VIEWER),), "")
    workers = Workers()
    app = make_api(Sources.open(None, "127.0.0.1:1"), workers, None, access)
    desk = Desk(app.state.seen, workers, searches=saved)
    add_saved(app, lambda _: desk)
    with serving(app) as address:
        yield address


def send(url: str, person: str, **fields: str) -> httpx.Response:
    return httpx.post(url + PATH, data=fields, headers={"x-user": person, "origin": url}, timeout=60)


def test_a_search_is_saved_and_removed(url: str, saved: SavedSearches) -> None:
    """The answer leads back to the search; each person changes its own list."""
    done = send(url, "ann", action="save", name="late", q="verdict:HUNG from:2h")
    assert (done.status_code, done.headers["location"]) == (303, "/search?q=verdict%3AHUNG%20from%3A2h")
    send(url, "bob", action="save", name="late", q="topic:orders")
    assert saved.of("ann") == (SavedSearch("late", "verdict:HUNG from:2h"),)
    assert send(url, "bob", action="remove", name="late", q="").headers["location"] == "/search?q="
    again = send(url, "bob", action="remove", name="late", q="")
    assert again.headers["location"] == "/search?q=&unsaved=unknown"
    assert (len(saved.of("ann")), saved.of("bob")) == (1, ())


def test_what_cannot_be_saved_is_said(url: str, saved: SavedSearches) -> None:
    """The page that follows shows why, in the reader's language."""
    for name, query, why in (("", "topic:x", "name"), ("a", "verdict:GONE", "query"), ("a", "", "query")):
        answer = send(url, "ann", action="save", name=name, q=query)
        assert answer.headers["location"].endswith(f"&unsaved={why}")
    assert saved.of("ann") == ()
    saved.path.write_text("{")
    assert send(url, "ann", action="save", name="a", q="topic:x").status_code == 503


def test_other_sites_save_nothing(url: str, saved: SavedSearches) -> None:
    """A form needs this server's Origin and the token of its session."""
    fields = {"action": "save", "name": "a", "q": "topic:x"}
    for headers in ({"x-user": "ann"}, {"x-user": "ann", "origin": "http://evil.example"}):
        assert httpx.post(url + PATH, data=fields, headers=headers, timeout=60).status_code == 403
    assert send(url, "ann", **fields, csrf="another").status_code == 403
    assert httpx.post(url + PATH, data=fields, headers={"origin": url}, timeout=60).status_code == 401
    assert saved.of("ann") == ()
