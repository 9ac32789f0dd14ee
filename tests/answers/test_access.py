"""Accounts: who asks, what each role sees and does, and what never gets in."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from argon2 import PasswordHasher, Type

from mqtrail.answers import DeadLetterConditions, SearchConditions, Sources, Status
from mqtrail.answers.access import (
    AccessConfig,
    AccessDesk,
    Accounts,
    AccountsFailed,
    Grant,
    InvalidAccount,
    KnownClusters,
    NotAllowed,
    Person,
    PersonRole,
    Right,
    SeenSources,
)
from mqtrail.answers.access import accounts as passwords
from mqtrail.answers.access.confined import ConfinedAnswers
from mqtrail.answers.access.sessions import Attempts, Sessions
from mqtrail.answers.changes import AuditLog, ClusterChanges, read_audit
from mqtrail.answers.handling import HandledIncidents
from mqtrail.answers.http import API_PREFIX, Changing, make_api
from mqtrail.answers.lookup import Answers
from mqtrail.wire import MQError
from tests.answers.conftest import Shop
from tests.answers.lakes import id_of, key_of
from tests.answers.serving import serving

PASSWORD = "correct horse battery"


def test_passwords_are_hashed_as_rfc_9106_recommends() -> None:
    """Argon2id with 64 MiB. The other tests hash with less."""
    chosen = passwords._HASHER
    assert (chosen.type, chosen.memory_cost, chosen.time_cost) == (Type.ID, 65_536, 3)


@pytest.fixture(autouse=True)
def _quick_hashes(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    if "rfc" not in request.node.name:
        monkeypatch.setattr(passwords, "_HASHER", PasswordHasher(time_cost=1, memory_cost=8, parallelism=1))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("viewer", Grant(PersonRole.VIEWER)),
        ("viewer+bodies", Grant(PersonRole.VIEWER, has_bodies=True)),
        ("operator@prod", Grant(PersonRole.OPERATOR, "prod")),
        ("admin/orders*", Grant(PersonRole.ADMIN, topic="orders*")),
        ("viewer+bodies@prod/orders", Grant(PersonRole.VIEWER, "prod", "orders", has_bodies=True)),
    ],
)
def test_the_text_of_a_grant(text: str, expected: Grant) -> None:
    assert Grant.parse(text) == expected
    assert str(expected) == text


@pytest.mark.parametrize("text", ["", "root", "viewer ", "viewer@", "viewer/", "viewer+all", "viewer@a@b", "Viewer"])
def test_other_texts_are_no_grant(text: str) -> None:
    with pytest.raises(InvalidAccount):
        Grant.parse(text)


@pytest.mark.parametrize(
    ("grant", "right", "cluster", "topic", "expected"),
    [
        ("viewer", Right.READ, "", "", True),
        ("viewer", Right.BODIES, "", "", False),
        ("viewer+bodies", Right.BODIES, "", "", True),
        ("viewer+bodies", Right.OPERATE, "", "", False),
        ("operator", Right.BODIES, "prod", "orders", True),
        ("operator", Right.ADMINISTER, "", "", False),
        ("admin", Right.ADMINISTER, "", "", True),
        ("viewer@prod", Right.READ, "prod", "", True),
        ("viewer@prod", Right.READ, "", "", False),
        ("viewer@prod", Right.READ, "test", "orders", False),
        ("viewer/orders", Right.READ, "prod", "orders", True),
        ("viewer/orders", Right.READ, "prod", "orders2", False),
        ("viewer/orders", Right.READ, "prod", "", False),
        ("viewer/ord*", Right.READ, "prod", "orders", True),
        ("viewer/*", Right.READ, "prod", "", False),
        ("operator@prod/orders", Right.OPERATE, "prod", "orders", True),
        ("operator@prod/orders", Right.OPERATE, "", "orders", False),
    ],
)
def test_what_a_grant_gives(grant: str, right: Right, cluster: str, topic: str, expected: bool) -> None:
    assert Person("ann", (Grant.parse(grant),)).may(right, cluster, topic) is expected


def test_accounts_are_kept_for_their_owner_only(tmp_path: Path) -> None:
    """Neither the password nor a token is in the file; another process sees a change at once."""
    path = tmp_path / "users.json"
    accounts, other = Accounts(path), Accounts(path)
    accounts.add("ann", (Grant(PersonRole.ADMIN),), PASSWORD)
    token = accounts.add_token("ann", "ci", 0, 1_000)
    assert path.stat().st_mode & 0o777 == 0o600
    assert PASSWORD not in path.read_text()
    assert token not in path.read_text()
    assert other.verify("ann", PASSWORD) is not None
    assert other.verify("ann", f"{PASSWORD}!") is None
    assert other.verify("bob", PASSWORD) is None
    found = other.owner_of(token, 999)
    assert found is not None
    assert (found[0].name, found[1].name) == ("ann", "ci")
    assert other.owner_of(token, 1_000) is None
    accounts.remove_token("ann", "ci")
    assert other.owner_of(token, 0) is None
    before = other.all()["ann"].epoch
    accounts.set_password("ann", "another good password")
    assert other.all()["ann"].epoch != before
    accounts.remove("ann")
    assert other.all() == {}


def test_accounts_refuse_what_cannot_be(tmp_path: Path) -> None:
    accounts = Accounts(tmp_path / "users.json")
    accounts.add("ann", (Grant(PersonRole.VIEWER),), "")
    for name, password in (("ann", ""), ("bob", "short"), ("a b", ""), ("", ""), ("x" * 129, "")):
        with pytest.raises(InvalidAccount):
            accounts.add(name, (), password)
    assert accounts.verify("ann", "") is None
    with pytest.raises(InvalidAccount):
        accounts.remove("bob")
    with pytest.raises(InvalidAccount):
        accounts.remove_token("ann", "ci")
    with pytest.raises(InvalidAccount):
        accounts.add("first", (), "", is_first=True)
    assert list(accounts.all()) == ["ann"]


@pytest.mark.parametrize("text", ["", "{", "[]", '{"version": 2, "users": {}}', '{"version": 1, "users": {"a": {}}}'])
def test_a_damaged_file_lets_nobody_in(tmp_path: Path, text: str) -> None:
    """It is an error, not a console without users: that would offer to make a first admin."""
    path = tmp_path / "users.json"
    path.write_text(text)
    path.chmod(0o600)
    with pytest.raises(AccountsFailed, match="damage"):
        Accounts(path).all()
    path.chmod(0o644)
    with pytest.raises(AccountsFailed, match="chmod 600"):
        Accounts(path).all()


def test_a_session_ends_by_time_by_idleness_and_by_order() -> None:
    sessions = Sessions(session_ms=100, idle_ms=30)
    token = sessions.begin("ann", "1", None, 0)
    assert sessions.find("another", 0) is None
    for at_ms in (29, 58, 87):
        found = sessions.find(token, at_ms)
        assert found is not None
    assert found is not None
    assert sessions.is_over(found, 100)
    assert sessions.find(token, 100) is None
    idle = sessions.begin("ann", "1", None, 0)
    assert sessions.find(idle, 30) is None
    ended = sessions.begin("ann", "1", None, 0)
    known = sessions.find(ended, 0)
    assert known is not None
    sessions.end(ended)
    assert sessions.is_over(known, 0)
    first = sessions.begin("bob", "1", None, 0)
    for _ in range(20):
        sessions.begin("bob", "1", None, 0)
    assert sessions.find(first, 0) is None


def test_failures_are_counted_for_15_minutes() -> None:
    attempts = Attempts()
    for at_ms in (0, 1_000, 2_000):
        assert attempts.wait_ms("ann", 3, at_ms) == 0
        attempts.add("ann", at_ms)
    assert attempts.wait_ms("ann", 3, 2_000) == 15 * 60_000 - 2_000
    assert attempts.wait_ms("bob", 3, 2_000) == 0
    assert attempts.wait_ms("ann", 3, 15 * 60_000) == 0
    attempts.add("ann", 15 * 60_000)
    attempts.forget("ann")
    assert attempts.wait_ms("ann", 1, 15 * 60_000) == 0


@pytest.mark.parametrize(
    "settings",
    [
        {"url": "console.example"},
        {"tls_certificate": "a.pem"},
        {"proxy_header": "X-User"},
        {"oidc_issuer": "https://id.example", "url": "https://console.example"},
        {"oidc_issuer": "https://id.example", "oidc_client_id": "mqtrail"},
        {"session_ms": 0},
        {"group_roles": ("admins",)},
        {"group_roles": ("admins=root",)},
        {"default_roles": ("root",)},
    ],
)
def test_settings_that_contradict_each_other(settings: dict[str, Any]) -> None:
    with pytest.raises(MQError):
        AccessConfig(**settings)


def seen_of(lake_path: Path, *grants: str) -> SeenSources:
    """The lake as a user with these roles sees it."""
    sources = Sources.open(lake_path, "")
    person = Person("ann", tuple(map(Grant.parse, grants)))
    return SeenSources(sources, KnownClusters(sources), lambda: person)


@pytest.mark.slow
def test_a_role_on_a_topic_shows_that_topic_alone(lake_path: Path) -> None:
    """What can be confined is; what is about all topics is refused."""
    mine = seen_of(lake_path, "viewer/orders").of_lake()
    assert mine.search(SearchConditions(), 0).matched_count > 0
    assert mine.trace(key_of("hung"), 0).status is Status.FOUND
    assert mine.neighbours(id_of("hung"), 0).neighbours == ()
    other = seen_of(lake_path, "viewer/parcels").of_lake()
    assert other.search(SearchConditions(), 0).matched_count == 0
    assert other.dead_letters(DeadLetterConditions(), 0).letters == ()
    hidden = other.trace(key_of("hung"), 0)
    assert (hidden.status, hidden.trajectories) == (Status.CANNOT_LOOK, ())
    for refused in (
        lambda: other.search(SearchConditions(topic="orders"), 0),
        lambda: other.dead_letters(DeadLetterConditions(topic="orders"), 0),
        lambda: other.prove("orders", 0),
        lambda: other.neighbours(id_of("hung"), 0),
        lambda: other.report(0),
        lambda: other.history(0),
        lambda: other.clocks(0),
        lambda: other.freshness(0),
        lambda: other.lag(0),
        lambda: other.incidents(0),
        lambda: other.export(0),
        lambda: other.query("SELECT 1", 0),
        lambda: seen_of(lake_path, "viewer/a", "viewer/b").of_lake().search(SearchConditions(), 0),
    ):
        with pytest.raises(NotAllowed):
            refused()


def test_every_look_up_is_confined_or_refused() -> None:
    """A new one is not open to a role on a topic only because nobody thought of it."""
    names = {name for name, one in vars(Answers).items() if callable(one) and not name.startswith("_")}
    assert names <= set(vars(ConfinedAnswers))


def test_a_role_in_a_cluster_shows_that_cluster_alone(lake_path: Path) -> None:
    """The lake has a cluster for each history."""
    seen = seen_of(lake_path, "viewer@hung")
    assert [one.msg_id for one in seen.of_lake().search(SearchConditions(), 0).trajectories] == [id_of("hung")]
    assert seen.of_lake("hung").report(0).scope.clusters == ("hung",)
    with pytest.raises(NotAllowed):
        seen.of_lake("send ok")
    with pytest.raises(NotAllowed):
        seen_of(lake_path, "viewer@hung", "viewer@other").of_lake()
    assert seen.of_lake().trace(key_of("send ok"), 0).trajectories == ()


ROLES = ("", "viewer", "viewer+bodies", "operator", "admin", "viewer/orders", "operator/orders", "admin/parcels")
ALL = frozenset(ROLES[1:5])
"""Roles on all topics."""
ON_ORDERS = frozenset({"viewer/orders", "operator/orders"})
EVERYONE = frozenset(ROLES[1:])
TOPICS = {"topic": "orders", "read_queue_count": 4, "write_queue_count": 4, "permission": "rw"}
OPERATE = frozenset({"operator", "admin"})
ROUTES: dict[tuple[str, str], tuple[dict[str, Any], frozenset[str]]] = {
    ("GET", "/me"): ({}, EVERYONE),
    ("GET", "/trace"): ({"id": "none"}, EVERYONE),
    ("GET", "/neighbours"): ({"id": id_of("hung")}, ALL | ON_ORDERS),
    ("GET", "/search"): ({"q": "topic:orders"}, ALL | ON_ORDERS),
    ("GET", "/search/facets"): ({"q": "topic:orders"}, ALL | ON_ORDERS),
    ("GET", "/search/names"): ({"topic": "orders"}, ALL | ON_ORDERS),
    ("GET", "/dead-letters"): ({"topic": "orders"}, ALL | ON_ORDERS),
    ("GET", "/prove"): ({"topic": "orders"}, ALL | ON_ORDERS),
    ("GET", "/message"): ({"place": "broker-a/orders/0@99"}, ALL | ON_ORDERS),
    ("GET", "/topics"): ({}, EVERYONE),
    **{("GET", f"/{name}"): ({}, ALL) for name in ("export", "report", "verdicts", "latency", "incidents", "lag")},
    **{("GET", f"/{name}"): ({}, ALL) for name in ("freshness", "rejects")},
    ("GET", "/latency/compare"): ({"from": "2h", "against": "1d"}, ALL),
    **{("GET", f"/{name}"): ({}, ALL) for name in ("brokers", "groups", "doctor", "alerts")},
    **{("GET", f"/{name}"): ({}, ALL) for name in ("replication", "name-servers")},
    **{("GET", f"/{name}"): ({}, ALL) for name in ("delayed", "transactions", "pops")},
    ("GET", "/client"): ({"group": "billing", "id": "none", "stack": True}, OPERATE),
    ("GET", "/broker-access"): ({}, frozenset({"admin"})),
    ("GET", "/settings"): ({"broker": "broker-a"}, ALL),
    ("GET", "/members"): ({"group": "billing"}, ALL),
    ("GET", "/audit"): ({}, frozenset({"admin"})),
}
CHANGES: dict[str, tuple[dict[str, Any], frozenset[str]]] = {
    "reset-offsets": ({"group": "billing", "topic": "orders", "at_ms": 0}, OPERATE | {"operator/orders"}),
    "clone-offsets": ({"source": "billing", "group": "other", "topic": "orders"}, OPERATE | {"operator/orders"}),
    "set-offset": (
        {"group": "billing", "topic": "orders", "broker": "broker-a", "queue_id": 0, "offset": 0},
        OPERATE | {"operator/orders"},
    ),
    "resend-message": ({"place": "broker-a/orders/0@99", "group": "billing"}, OPERATE | {"operator/orders"}),
    "resend-edited": (
        {"place": "broker-a/orders/0@99", "group": "billing", "body": "{}"},
        OPERATE | {"operator/orders"},
    ),
    "consume-directly": (
        {"place": "broker-a/orders/0@99", "group": "billing", "client_id": "x"},
        OPERATE | {"operator/orders"},
    ),
    "resend-dead-letters": ({"group": "billing"}, OPERATE),
    "set-topic": (TOPICS, frozenset({"admin"})),
    "delete-topic": ({"topic": "parcels"}, frozenset({"admin", "admin/parcels"})),
    "set-group": ({"group": "billing"}, frozenset({"admin"})),
    "delete-group": ({"group": "billing"}, frozenset({"admin"})),
    "recall-message": (
        {"topic": "orders", "broker": "broker-a", "msg_id": "x", "due_ms": 1},
        OPERATE | {"operator/orders"},
    ),
    "resume-checks": ({"places": ["broker-a/TRANS_CHECK_MAX_TIME_TOPIC/0@99"]}, OPERATE),
    "set-consume-mode": ({"group": "billing", "topic": "orders", "mode": "PULL"}, frozenset({"admin"})),
    "set-broker-settings": ({"settings": {"fileReservedTime": "49"}}, frozenset({"admin"})),
}


class Guarded:
    """An API with accounts, and a client for each role."""

    def __init__(self, url: str, access: AccessDesk, audit: Path) -> None:
        self.access = access
        self.audit = audit
        self.url = url
        self._tokens: dict[str, str] = {}

    def client(self, role: str) -> httpx.Client:
        """Return a client with an API token of a user with this role; '': without one."""
        if role and role not in self._tokens:
            name = f"user-{len(self._tokens)}"
            self.access.accounts.add(name, (Grant.parse(role),), "")
            self._tokens[role] = self.access.accounts.add_token(name, "test", 0, 0)
        headers = {"authorization": f"Bearer {self._tokens[role]}"} if role else {}
        return httpx.Client(base_url=self.url, headers=headers, timeout=60)


@pytest.fixture(scope="module")
def guarded(lake_path: Path, shop: Shop, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    folder = tmp_path_factory.mktemp("accounts")
    audit = AuditLog(folder / "audit.jsonl")
    access = AccessDesk(AccessConfig(), Accounts(folder / "users.json"), audit)
    sources = Sources.open(lake_path, shop.namesrv)
    changing = Changing(ClusterChanges(shop.namesrv, audit))
    handled = HandledIncidents(folder / "incidents.sqlite", audit.path)
    with serving(make_api(sources, None, changing, access, folder / "alerts.sqlite", handled)) as url:
        yield Guarded(url, access, audit.path)


@pytest.mark.slow
@pytest.mark.parametrize("role", ROLES)
def test_each_role_at_each_route(guarded: Guarded, role: str) -> None:
    """Whoever may not ask gets 403 and without a log-in 401; whoever may gets another answer, or a wrong parameter."""
    with guarded.client(role) as client:
        for (method, path), (parameters, allowed) in ROUTES.items():
            status = client.request(method, API_PREFIX + path, params=parameters).status_code
            assert (status not in (401, 403)) is (role in allowed), (role, path, status)
            assert role or status == 401
        for action, (fields, allowed) in CHANGES.items():
            for path in ("/changes/plan", "/changes?basis=another"):
                answer = client.post(API_PREFIX + path, json={"action": action, **fields})
                assert (answer.status_code not in (401, 403)) is (role in allowed), (role, action, answer.text)
        order = {"incident_id": "none", "kind": "acknowledge"}
        status = client.post(f"{API_PREFIX}/incidents/acts", json=order).status_code
        assert status == (404 if role in OPERATE else 403 if role else 401), (role, status)
        assert (client.get("/openapi.json").status_code == 401) is (role == "")


def test_every_route_is_in_the_matrix(guarded: Guarded) -> None:
    """A new operation needs a decision on who may ask it."""
    with guarded.client("viewer") as client:
        paths = client.get("/openapi.json").json()["paths"]
    posts = ("/changes", "/changes/plan", "/incidents/acts")
    assert set(paths) == {API_PREFIX + path for path in (*(path for _, path in ROUTES), *posts)}


def test_bodies_are_hidden_from_viewers(guarded: Guarded, shop: Shop) -> None:
    """A viewer sees size and properties, not one byte of the body; with the right it does."""
    with guarded.client("admin") as client:
        found = client.get(f"{API_PREFIX}/trace", params={"id": shop.traced, "cluster": "send ok"}).json()
    place = found["trajectories"][0]["place"]
    answers = {}
    for role in ("viewer", "viewer/orders", "viewer+bodies", "operator/orders"):
        with guarded.client(role) as client:
            answers[role] = client.get(f"{API_PREFIX}/message", params={"place": place}).json()
    for role in ("viewer", "viewer/orders"):
        one = answers[role]
        assert (one["body_base64"], one["is_hidden"], one["body_size"]) == ("", True, 8), role
        assert one["properties"]["KEYS"] == "order-42"
    assert {answers[role]["body_base64"] for role in ("viewer+bodies", "operator/orders")} == {"NDIgc29ja3M="}


def test_a_role_holds_only_as_long_as_it_is_given(guarded: Guarded) -> None:
    """Roles are those of now, not of the log-in; what was done with a token has its owner in the audit log."""
    accounts = guarded.access.accounts
    accounts.add("temp", (Grant(PersonRole.ADMIN),), "")
    token = accounts.add_token("temp", "t", 0, 0)
    change = {"action": "set-broker-settings", "settings": {"fileReservedTime": "48"}}
    with httpx.Client(base_url=guarded.url, headers={"authorization": f"Bearer {token}"}, timeout=60) as client:
        assert client.post(f"{API_PREFIX}/changes", json=change).status_code == 200
        assert read_audit(guarded.audit).changes[0].who == "temp"
        accounts.set_grants("temp", (Grant(PersonRole.VIEWER),))
        assert client.post(f"{API_PREFIX}/changes", json=change).status_code == 403
        assert client.get(f"{API_PREFIX}/me").json()["roles"] == ["viewer"]
        accounts.remove("temp")
        refused = client.get(f"{API_PREFIX}/me")
    assert (refused.status_code, refused.headers["www-authenticate"]) == (401, "Bearer")
    assert json.loads(refused.text)["status"] == 401


def test_guesses_of_tokens_are_bounded(tmp_path: Path) -> None:
    """After 30 wrong tokens an address waits, also with a right one."""
    access = AccessDesk(AccessConfig(), Accounts(tmp_path / "users.json"), AuditLog(tmp_path / "audit.jsonl"))
    access.accounts.add("ann", (Grant(PersonRole.VIEWER),), "")
    token = access.accounts.add_token("ann", "t", int(time.time() * 1_000), 0)

    def ask(bearer: str, address: str = "10.0.0.1") -> bool:
        return access.visitor(address, address, cookie="", bearer=bearer, proxied="") is not None

    assert ask(token)
    assert not any(ask(f"wrong-{number}") for number in range(30))
    with pytest.raises(InvalidAccount, match="too many"):
        ask(token)
    assert ask(token, "10.0.0.2")
    access.close()


async def test_only_failed_log_ins_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The users of an office have one address: 30 who log in within 15 minutes keep nobody out."""
    access = AccessDesk(AccessConfig(), Accounts(tmp_path / "users.json"), AuditLog(tmp_path / "audit.jsonl"))
    known = passwords.UserAccount("ann", (Grant(PersonRole.VIEWER),), "hash", "epoch")
    monkeypatch.setattr(access.accounts, "verify", lambda name, password: known if password == "right" else None)
    for _ in range(60):
        assert await access.log_in("ann", "right", "10.0.0.1")
    for number in range(30):
        with pytest.raises(InvalidAccount, match="wrong"):
            await access.log_in(f"user-{number}", "wrong", "10.0.0.1")
        if number < 29:
            assert await access.log_in("ann", "right", "10.0.0.1")
    with pytest.raises(InvalidAccount, match="too many"):
        await access.log_in("ann", "right", "10.0.0.1")
    assert await access.log_in("ann", "right", "10.0.0.2")
    access.close()


def test_only_a_trusted_proxy_names_users(tmp_path: Path) -> None:
    """Its header is used only from its address; the user that it names needs a role."""
    config = AccessConfig(proxy_header="X-User", proxy_addresses=("10.0.0.9",))
    access = AccessDesk(config, Accounts(tmp_path / "users.json"), AuditLog(tmp_path / "audit.jsonl"))
    access.accounts.add("ann", (Grant(PersonRole.OPERATOR),), "")

    def named(peer: str, name: str) -> Any:
        return access.visitor(peer, peer, cookie="", bearer="", proxied=name)

    visitor = named("10.0.0.9", "ann")
    assert (visitor.now().name, visitor.is_ambient) == ("ann", True)
    assert named("10.0.0.8", "ann") is None
    assert named("10.0.0.9", "bob") is None
    assert named("10.0.0.9", "") is None
    assert access.address_of("10.0.0.9", "1.2.3.4, 5.6.7.8") == "5.6.7.8"
    assert access.address_of("10.0.0.8", "1.2.3.4") == "10.0.0.8"
    access.close()
