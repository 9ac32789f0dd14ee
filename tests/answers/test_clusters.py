"""Several clusters in one HTTP API: each below `/c/NAME`, with its own sources, threads, roles and files."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis.specs.openapi.checks import positive_data_acceptance

from mqtrail.answers import Answers, IncidentsAnswer, Scope, Sources
from mqtrail.answers.access import AccessConfig, AccessDesk, Accounts, Grant, Person
from mqtrail.answers.changes import AuditLog, ClusterChanges, read_audit
from mqtrail.answers.cluster import ClusterAnswers
from mqtrail.answers.handling import HandledIncidents
from mqtrail.answers.http import (
    API_PREFIX,
    ClusterPaths,
    NamedCluster,
    ServedCluster,
    ServedClusters,
    make_clusters_api,
)
from mqtrail.answers.http.workers import WORKERS_MAX
from tests.answers.lakes import id_of, key_of, make_lake, rows_of
from tests.answers.serving import serving
from tests.answers.test_handling import NOW_MS, incident
from tests.waiting import wait_until

USERS = {
    "admin": ("admin",),
    "of_west": ("operator@west",),
    "of_both": ("viewer@east", "admin@west"),
    "of_rocketmq": ("viewer@east:hung",),
    "stranger": ("viewer@north",),
}
DOWN = "127.0.0.1:1"


@dataclass(frozen=True)
class Fleet:
    """East has a lake alone. West has a cluster that is down, and a folder without a lake."""

    url: str
    folder: Path
    served: ServedClusters

    def get(self, path: str, user: str = "admin", **parameters: Any) -> httpx.Response:
        headers = {"x-user": user}
        return httpx.get(self.url + path, params=parameters or None, headers=headers, timeout=60)


def served(folder: Path, name: str, lake: Path, namesrv: str = "") -> ServedCluster:
    own = folder / name
    changes = ClusterChanges(namesrv, AuditLog(own / "audit.jsonl", name)) if namesrv else None
    return ServedCluster(
        NamedCluster(name, f"The {name}"),
        Sources.open(lake, namesrv, lake_count=2, name=name),
        alerts=own / "alerts.sqlite",
        searches=own / "searches.json",
        changes=changes,
        handled=HandledIncidents(own / "incidents.sqlite", own / "audit.jsonl", name),
    )


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    folder = tmp_path_factory.mktemp("clusters")
    make_lake(folder / "lake", rows_of(["hung", "send ok"]))
    (folder / "no-lake").mkdir()
    config = AccessConfig(proxy_header="X-User", proxy_addresses=("127.0.0.1",))
    access = AccessDesk(config, Accounts(folder / "users.json"), AuditLog(folder / "audit.jsonl"))
    for name, roles in USERS.items():
        access.accounts.add(name, tuple(map(Grant.parse, roles)), "")
    clusters = [served(folder, "east", folder / "lake"), served(folder, "west", folder / "no-lake", DOWN)]
    known = ServedClusters(clusters, access)
    app = make_clusters_api(known)
    app.add_middleware(ClusterPaths, clusters=known)
    with serving(app) as url:
        yield Fleet(url, folder, known)


@pytest.mark.parametrize(
    ("grants", "expected"),
    [
        (("viewer",), ("viewer",)),
        (("operator@east", "viewer@west"), ("operator",)),
        (("viewer@west/orders",), ()),
        (("viewer+bodies@east/orders",), ("viewer+bodies/orders",)),
        (("viewer@east:DefaultCluster/orders",), ("viewer@DefaultCluster/orders",)),
        (("viewer@DefaultCluster", "operator@west:DefaultCluster", "admin@removed", "admin@eastern"), ()),
    ],
)
def test_roles_within_a_cluster(grants: tuple[str, ...], expected: tuple[str, ...]) -> None:
    """The name of another cluster gives nothing: of one of the console, of one that was removed from its file, or of
    RocketMQ's own cluster without the name of the file before it.
    """
    person = Person("ann", tuple(map(Grant.parse, grants))).within("east")
    assert (person.name, tuple(map(str, person.grants))) == ("ann", expected)


def test_a_path_chooses_the_cluster(fleet: Fleet) -> None:
    """The answers are those of its own sources; what it lacks is an error with the remedy of the file."""
    answer = fleet.get(f"/c/east{API_PREFIX}/trace", id=key_of("hung")).json()
    assert [one["msg_id"] for one in answer["trajectories"]] == [id_of("hung")]
    down = fleet.get(f"/c/west{API_PREFIX}/brokers")
    assert (down.status_code, "no name server answered" in down.text) == (502, True)
    missing = fleet.get(f"/c/west{API_PREFIX}/search")
    assert (missing.status_code, "no-lake" in missing.text) == (502, True)
    without = fleet.get(f"/c/east{API_PREFIX}/lag")
    remedy = "set `namesrv` of 'east' in the file of `--clusters`"
    assert (without.status_code, without.json()["detail"]) == (404, f"found no cluster: {remedy}")


def test_paths_that_name_no_cluster(fleet: Fleet) -> None:
    """The API needs a name, so that no change reaches a cluster that nobody named. A page leads to the first."""
    for path in ("/search", "/changes", "/alerts"):
        answer = fleet.get(API_PREFIX + path)
        assert answer.status_code == 404
        assert f"/c/NAME{API_PREFIX}/…" in answer.json()["detail"]
    posted = httpx.post(f"{fleet.url}/saved-searches", headers={"x-user": "admin", "origin": fleet.url}, timeout=60)
    assert posted.status_code == 404
    for path, name in (("/c/north/", "north"), (f"/c/north{API_PREFIX}/search", "north"), ("/c/north", "north")):
        answer = fleet.get(path)
        assert (answer.status_code, f"found no cluster {name!r}" in answer.json()["detail"]) == (404, True)
    assert fleet.get(f"/c/east/c/west{API_PREFIX}/search").status_code == 404
    led = {path: fleet.get(path).headers.get("location") for path in ("/", "/search?q=topic%3Ax&skip=50", "/c/west")}
    assert led == {
        "/": "/c/east/",
        "/search?q=topic%3Ax&skip=50": "/c/east/search?q=topic%3Ax&skip=50",
        "/c/west": "/c/west/",
    }


def test_each_user_sees_the_clusters_of_its_roles(fleet: Fleet) -> None:
    """A role in one cluster says nothing about another, not even its name."""

    def seen(user: str) -> list[str]:
        return [one["name"] for one in fleet.get(f"{API_PREFIX}/clusters", user).json()["clusters"]]

    assert {user: seen(user) for user in USERS} == {
        "admin": ["east", "west"],
        "of_west": ["west"],
        "of_both": ["east", "west"],
        "of_rocketmq": ["east"],
        "stranger": [],  # north is no cluster of the file
    }
    assert fleet.get("/", "of_west").headers["location"] == "/c/west/"
    refused = fleet.get(f"/c/east{API_PREFIX}/search", "of_west")
    assert (refused.status_code, "found no role of 'of_west' in the cluster 'east'" in refused.text) == (403, True)
    assert fleet.get(f"/c/north{API_PREFIX}/search", "of_west").status_code == 404
    roles = {name: fleet.get(f"/c/{name}{API_PREFIX}/me", "of_both").json()["roles"] for name in ("east", "west")}
    assert roles == {"east": ["viewer"], "west": ["admin"]}
    assert fleet.get(f"{API_PREFIX}/me", "of_both").json()["roles"] == ["viewer@east", "admin@west"]
    assert fleet.get(f"/c/east{API_PREFIX}/search", "of_both").json()["matched_count"] == 2
    assert fleet.get(f"/c/east{API_PREFIX}/search", "of_rocketmq").json()["matched_count"] == 1
    assert fleet.get(f"/c/east{API_PREFIX}/search", "stranger").status_code == 403
    anonymous = httpx.get(f"{fleet.url}/c/east{API_PREFIX}/search", timeout=60)
    assert anonymous.status_code == 401
    page = httpx.get(f"{fleet.url}/c/east/search?q=x", timeout=60)
    assert (page.status_code, page.headers["location"]) == (303, "/login?to=/c/east/search%3Fq%3Dx")


def test_a_change_needs_the_token_of_its_session(fleet: Fleet) -> None:
    """Also below `/c/NAME`: a page of another site may have the browser send a cookie, but does not know the token."""
    access = fleet.served.access
    assert access is not None
    account = access.accounts.find("admin")
    assert account is not None
    token = asyncio.run(access.begin(account, None, "127.0.0.1"))
    order = {"incident_id": "none", "kind": "acknowledge"}
    with httpx.Client(base_url=fleet.url, cookies={"mqtrail-session": token}, headers={"origin": fleet.url}) as client:
        path = f"/c/east{API_PREFIX}/incidents/acts"
        assert client.post(path, json=order).status_code == 403
        csrf = client.get(f"{API_PREFIX}/me").json()["csrf"]
        assert client.post(path, json=order, headers={"x-csrf-token": csrf}).status_code == 404


def test_acts_and_changes_name_their_cluster(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    """An incident that is acknowledged in one cluster is not in another; each has its audit log."""
    found = IncidentsAnswer(Scope(0, first_ms=0, end_ms=NOW_MS), 0, NOW_MS, (incident(),))
    monkeypatch.setattr(Answers, "incidents", lambda *_, **__: found)
    order = {"incident_id": incident().incident_id, "kind": "acknowledge"}
    headers = {"x-user": "of_both", "origin": fleet.url}
    acts = f"/c/east{API_PREFIX}/incidents/acts"
    assert httpx.post(fleet.url + acts, json=order, headers=headers, timeout=60).status_code == 403
    headers["x-user"] = "admin"
    assert httpx.post(fleet.url + acts, json=order, headers=headers, timeout=60).status_code == 200
    (noted,) = read_audit(fleet.folder / "east" / "audit.jsonl").changes
    assert (noted.cluster, noted.action, noted.who) == ("east", "acknowledge-incident", "admin")
    assert (fleet.folder / "east" / "incidents.sqlite").exists()

    def is_acknowledged(name: str) -> bool:
        (one,) = fleet.get(f"/c/{name}{API_PREFIX}/incidents").json()["incidents"]
        return one["handling"]["acknowledged"] is not None

    assert (is_acknowledged("east"), is_acknowledged("west")) == (True, False)
    assert read_audit(fleet.folder / "west" / "audit.jsonl").changes == ()
    audited = fleet.get(f"/c/west{API_PREFIX}/audit", "of_both").json()
    assert audited["path"] == str(fleet.folder / "west" / "audit.jsonl")
    assert fleet.get(f"/c/east{API_PREFIX}/audit").status_code == 404  # a lake alone cannot be changed


def test_a_cluster_that_hangs_holds_up_no_other(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    """All threads of west wait for its cluster; east answers."""
    end = threading.Event()
    monkeypatch.setattr(ClusterAnswers, "brokers", lambda _: end.wait())
    west = fleet.served.named("west")
    assert west is not None
    with ThreadPoolExecutor(WORKERS_MAX) as asking:
        for _ in range(WORKERS_MAX):
            asking.submit(fleet.get, f"/c/west{API_PREFIX}/brokers")
        try:
            wait_until(lambda: west.workers.asked_count == WORKERS_MAX)
            found = fleet.get(f"/c/east{API_PREFIX}/search", q="verdict:HUNG").json()
            assert [one["msg_id"] for one in found["trajectories"]] == [id_of("hung")]
            assert west.workers.asked_count == WORKERS_MAX
        finally:
            end.set()


@pytest.mark.parametrize(
    ("root", "path"), [("", "/clusters"), ("", "/me"), ("/c/east", "/search"), ("/c/west", "/alerts")]
)
def test_every_description_is_true(fleet: Fleet, root: str, path: str) -> None:
    """The API of a cluster names its address; status, media type and body are as described there."""
    description = fleet.get(f"{root}/openapi.json").json()
    assert description.get("servers", [{"url": ""}])[0]["url"] == root
    operation = schemathesis.openapi.from_dict(description)[API_PREFIX + path]["GET"]

    @settings(max_examples=4, deadline=None, suppress_health_check=list(HealthCheck))
    @given(case=operation.as_strategy())
    def ask(case: schemathesis.Case[Any]) -> None:
        case.call_and_validate(
            base_url=fleet.url + root,
            headers={"x-user": "admin"},
            excluded_checks=[positive_data_acceptance],
        )

    ask()
