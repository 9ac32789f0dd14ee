"""Log-in, log-out, the first admin and one's own account, as a browser without scripts does them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
from argon2 import PasswordHasher

from mqtrail.answers import Sources
from mqtrail.answers.access import AccessConfig, AccessDesk, Accounts, Grant, PersonRole, accounts
from mqtrail.answers.changes import AuditLog, read_audit
from mqtrail.answers.http import API_PREFIX, make_api
from mqtrail.console.login import add_login
from tests.answers.serving import serving

PASSWORD = "correct horse battery"


@pytest.fixture(autouse=True)
def _quick_hashes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accounts, "_HASHER", PasswordHasher(time_cost=1, memory_cost=8, parallelism=1))


@dataclass(frozen=True)
class Console:
    """The API and the pages of log-in."""

    access: AccessDesk
    url: str

    def client(self) -> httpx.Client:
        """Return a browser without cookies. It sends its Origin, as browsers do with forms."""
        return httpx.Client(base_url=self.url, headers={"origin": self.url}, timeout=60)


def log_in(client: httpx.Client, password: str = PASSWORD, name: str = "ann", to: str = "/") -> httpx.Response:
    return client.post("/login", data={"name": name, "password": password, "to": to})


@pytest.fixture
def console(tmp_path: Path) -> Iterator[Console]:
    access = AccessDesk(AccessConfig(), Accounts(tmp_path / "users.json"), AuditLog(tmp_path / "audit.jsonl"))
    app = make_api(Sources.open(None, "127.0.0.1:1"), None, None, access)
    add_login(app, access)
    with serving(app) as url:
        yield Console(access, url)


@pytest.fixture
def ann(console: Console) -> Console:
    """A console with the user ann."""
    console.access.accounts.add("ann", (Grant(PersonRole.VIEWER),), PASSWORD)
    return console


def csrf_of(page: str) -> str:
    found = re.search('name="csrf" value="([^"]+)"', page)
    assert found is not None
    return found[1]


def test_a_session_from_log_in_to_log_out(ann: Console) -> None:
    """Without one a page leads to the log-in, and the API refuses; the cookie is of no use after the log-out."""
    with ann.client() as client:
        first = client.get("/search?q=topic:orders")
        assert (first.status_code, first.headers["location"]) == (303, "/login?to=/search%3Fq%3Dtopic%3Aorders")
        assert client.get(f"{API_PREFIX}/me").status_code == 401
        page = client.get("/login")
        assert "default-src 'none'" in page.headers["content-security-policy"]
        assert "<script" not in page.text
        assert log_in(client, "wrong password").status_code == 403
        done = log_in(client, to="/search?q=topic:orders")
        assert (done.status_code, done.headers["location"]) == (303, "/search?q=topic:orders")
        cookie = done.headers["set-cookie"].lower()
        assert "httponly" in cookie
        assert "samesite=lax" in cookie
        me = client.get(f"{API_PREFIX}/me").json()
        assert (me["name"], me["roles"]) == ("ann", ["viewer"])
        assert client.post("/logout", data={"csrf": "another"}).status_code == 403
        token = client.cookies["mqtrail-session"]
        assert client.post("/logout", data={"csrf": me["csrf"]}).status_code == 303
        assert client.get(f"{API_PREFIX}/me", headers={"cookie": f"mqtrail-session={token}"}).status_code == 401
    noted = [
        (one.action, one.who, one.error) for one in read_audit(ann.access.accounts.path.parent / "audit.jsonl").changes
    ]
    assert noted == [
        ("log-out", "ann", ""),
        ("log-in", "ann", ""),
        ("log-in", "ann", "refused: wrong name or password"),
    ]


@pytest.mark.parametrize("to", ["//evil.example", "https://evil.example", "/\\evil.example"])
def test_a_log_in_leads_to_this_server(ann: Console, to: str) -> None:
    with ann.client() as client:
        assert log_in(client, to=to).headers["location"] == "/"


def test_other_sites_cannot_use_a_session(ann: Console) -> None:
    """A request that changes something needs this server's Origin, and in the API the token of the session."""
    with ann.client() as client:
        log_in(client)
        csrf = client.get(f"{API_PREFIX}/me").json()["csrf"]
        path = f"{API_PREFIX}/changes/plan"  # it does not exist here: 404 shows that the door let the request in
        assert client.post(path, headers={"x-csrf-token": csrf}).status_code == 404
        assert client.post(path, headers={"x-csrf-token": "another"}).status_code == 403
        assert client.post(path).status_code == 403
        assert client.post(path, headers={"x-csrf-token": csrf, "origin": "http://evil.example"}).status_code == 403
        del client.headers["origin"]
        assert client.post(path, headers={"x-csrf-token": csrf}).status_code == 403
        assert log_in(client).status_code == 403


def test_log_ins_are_bounded(ann: Console) -> None:
    """After five failures of a name from an address it waits, even with the right password."""
    with ann.client() as client:
        assert [log_in(client, f"wrong {number}").status_code for number in range(5)] == [403] * 5
        assert log_in(client).status_code == 429


def test_a_client_behind_a_proxy_does_not_choose_its_address(tmp_path: Path) -> None:
    """HAProxy adds its X-Forwarded-For as a further header; two headers with a user's name are none."""
    config = AccessConfig(proxy_header="X-User", proxy_addresses=("127.0.0.1",))
    access = AccessDesk(config, Accounts(tmp_path / "users.json"), AuditLog(tmp_path / "audit.jsonl"))
    access.accounts.add("ann", (Grant(PersonRole.VIEWER),), PASSWORD)
    app = make_api(Sources.open(None, "127.0.0.1:1"), None, None, access)
    add_login(app, access)
    with serving(app) as url, Console(access, url).client() as client:

        def try_from(claimed: str) -> int:
            headers = [("x-forwarded-for", claimed), ("x-forwarded-for", "10.0.0.1")]
            return client.post("/login", data={"name": "ann", "password": "wrong"}, headers=headers).status_code

        assert [try_from(f"1.2.3.{number}") for number in range(6)] == [403] * 5 + [429]

        def named(*names: str) -> int:
            return client.get(f"{API_PREFIX}/me", headers=[("x-user", name) for name in names]).status_code

        assert [named("ann"), named("ann", "ann"), named("bob", "ann"), named()] == [200, 401, 401, 401]
    found = read_audit(tmp_path / "audit.jsonl").changes
    assert {one.address for one in found} == {"10.0.0.1"}


def test_the_first_admin_is_made_once(console: Console) -> None:
    """With the token of the terminal, and never while there is a user."""
    token = console.access.first_token()
    with console.client() as client:
        words = {"token": token, "name": "root", "password": PASSWORD}
        assert client.post("/login/first", data={**words, "token": "guess"}).status_code == 403
        assert client.post("/login/first", data={**words, "password": "short"}).status_code == 403
        assert client.post("/login/first", data=words).headers["location"] == "/"
        assert client.get(f"{API_PREFIX}/me").json()["roles"] == ["admin"]
        again = client.post("/login/first", data={**words, "name": "other"})
        assert (again.status_code, again.headers["location"]) == (303, "/login")
    assert list(console.access.accounts.all()) == ["root"]
    assert console.access.first_token() == ""


def test_a_new_password_ends_other_sessions(ann: Console) -> None:
    with ann.client() as one, ann.client() as other:
        log_in(one)
        log_in(other)
        form = {"csrf": csrf_of(one.get("/account").text), "action": "password", "password": PASSWORD}
        assert one.post("/account", data={**form, "new_password": "short"}).status_code == 422
        log_in(one)
        form["csrf"] = csrf_of(one.get("/account").text)
        assert one.post("/account", data={**form, "new_password": "another good one"}).status_code == 303
        assert one.get(f"{API_PREFIX}/me").status_code == 200
        assert other.get(f"{API_PREFIX}/me").status_code == 401


def test_a_token_of_ones_own(ann: Console) -> None:
    """It is shown once, works without a session, and not after its removal."""
    with ann.client() as client:
        log_in(client)
        form = {"csrf": csrf_of(client.get("/account").text), "token": "ci"}
        made = client.post("/account", data={**form, "action": "add-token", "days": "30"}).text
        (token,) = re.findall(r"mqt_[\w-]+", made)
        assert token not in client.get("/account").text
        with httpx.Client(base_url=ann.url, headers={"authorization": f"Bearer {token}"}, timeout=60) as program:
            assert program.get(f"{API_PREFIX}/me").json()["name"] == "ann"
            client.post("/account", data={**form, "action": "remove-token"})
            assert program.get(f"{API_PREFIX}/me").status_code == 401


def test_the_cookie_of_a_console_behind_https(tmp_path: Path) -> None:
    """Browsers send it by HTTPS alone, and only to this host."""
    config = AccessConfig(url="https://console.example")
    access = AccessDesk(config, Accounts(tmp_path / "users.json"), AuditLog(tmp_path / "audit.jsonl"))
    access.accounts.add("ann", (Grant(PersonRole.VIEWER),), PASSWORD)
    app = make_api(Sources.open(None, "127.0.0.1:1"), None, None, access)
    add_login(app, access)
    headers = {"host": "console.example", "origin": "https://console.example"}
    with serving(app) as url, httpx.Client(base_url=url, headers=headers, timeout=60) as client:
        cookie = log_in(client).headers["set-cookie"]
        assert cookie.startswith("__Host-mqtrail=")
        assert {"Secure", "HttpOnly", "Path=/"} <= {part.strip() for part in cookie.split(";")}
        assert client.get("/login", headers={"host": "other.example"}).status_code == 403
