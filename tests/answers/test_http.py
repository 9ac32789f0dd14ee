"""The HTTP API: answers equal to those of `answers`, problems, and what may ask it."""

from __future__ import annotations

import asyncio
import base64
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis.specs.openapi.checks import positive_data_acceptance
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect
from websockets.typing import Origin

from mqtrail.answers import Answers, LatencySegment, Scope, SearchAnswer, Sources, as_json
from mqtrail.answers.http import API_PREFIX, Workers, make_api
from mqtrail.gateway import Problem, VisibleJson
from mqtrail.trail import CODES
from tests.answers.conftest import Shop
from tests.answers.lakes import NAMES, id_of, key_of
from tests.answers.serving import serving


@contextmanager
def asking(sources: Sources) -> Iterator[httpx.Client]:
    """A client of an API over the sources."""
    with serving(make_api(sources)) as url, httpx.Client(base_url=url, timeout=60) as client:
        yield client


@pytest.fixture(scope="module")
def api(lake_path: Path, shop: Shop) -> Iterator[httpx.Client]:
    """An API over the lake of histories and a live cluster."""
    with asking(Sources.open(lake_path, shop.namesrv)) as client:
        yield client


@pytest.fixture(scope="module")
def of_lake(lake_path: Path) -> Iterator[httpx.Client]:
    """An API over the lake alone."""
    with asking(Sources.open(lake_path, "")) as client:
        yield client


def get(client: httpx.Client, path: str, **parameters: Any) -> Any:
    """Return the JSON of an answer."""
    response = client.get(API_PREFIX + path, params=parameters)
    assert response.status_code == 200, response.text
    return response.json()


def problem(client: httpx.Client, path: str, **parameters: Any) -> tuple[int, str]:
    """Return status and detail of a problem."""
    response = client.get(API_PREFIX + path, params=parameters)
    assert response.headers["content-type"] == "application/problem+json"
    found = response.json()
    assert found["status"] == response.status_code
    return found["status"], found["detail"]


def test_trace_is_that_of_answers(of_lake: httpx.Client, lake_path: Path) -> None:
    """The JSON is that of `mqtrail trace --json`."""
    expected = as_json(Answers(lake_path).trace(key_of("hung"), 0))
    assert get(of_lake, "/trace", id=key_of("hung")) == json.loads(json.dumps(expected))


def test_trace_asks_the_cluster_too(api: httpx.Client, shop: Shop) -> None:
    """A message that the lake does not have yet comes from the brokers."""
    found = get(api, "/trace", id=shop.traced, cluster="send ok")  # the lake has a cluster a history
    assert found["status"] == "FOUND"
    assert found["trajectories"][0]["topic"] == "orders"


def test_a_stored_message_with_a_bound(api: httpx.Client, shop: Shop) -> None:
    """Properties and the first bytes of the body; its size says what is missing."""
    (known,) = get(api, "/trace", id=shop.traced, cluster="send ok")["trajectories"]
    whole = get(api, "/message", place=known["place"])
    assert base64.b64decode(whole["body_base64"]) == b"42 socks"
    assert whole["properties"]["KEYS"] == "order-42"
    part = get(api, "/message", place=known["place"], size=2)
    assert (base64.b64decode(part["body_base64"]), part["body_size"]) == (b"42", 8)
    assert problem(api, "/message", place="broker-a/orders")[0] == 422
    assert problem(api, "/message", place=known["place"].split("@")[0] + "@999")[0] == 404
    assert problem(api, "/message", place=known["place"], size=1 << 30)[0] == 422


def test_neighbours_are_those_of_answers(of_lake: httpx.Client) -> None:
    """Without any, the answer is empty and has its scope."""
    found = get(of_lake, "/neighbours", id=id_of("hung"))
    assert (found["neighbours"], found["msg_id"]) == ([], id_of("hung"))
    assert found["scope"]["as_of_ms"] is not None


def test_what_is_not_found_is_an_answer(of_lake: httpx.Client) -> None:
    """NOT_FOUND has its bounds: what was searched, and what was not."""
    found = get(of_lake, "/trace", id="nothing")
    assert found["status"] == "NOT_FOUND"
    assert any("newer than the lake" in omission for omission in found["scope"]["omissions"])


def test_search(of_lake: httpx.Client) -> None:
    """The query is the text of a search; pages follow each other without a gap."""
    found = get(of_lake, "/search", q="verdict:HUNG")
    assert [one["msg_id"] for one in found["trajectories"]] == [id_of("hung")]
    everything = get(of_lake, "/search", limit=1_000)
    assert everything["matched_count"] == len(NAMES)
    pages = [get(of_lake, "/search", limit=5, skip=skip)["trajectories"] for skip in (0, 5, 10)]
    assert [one for page in pages for one in page] == everything["trajectories"]


def test_facets_and_names_of_a_search(of_lake: httpx.Client) -> None:
    """Counts of the matches by value, as many values as asked for; the names that complete a search."""
    found = get(of_lake, "/search/facets", q="group:CG2", values=1)
    assert (found["matched_count"], found["counted_count"]) == (1, 1)
    facets = {one["field"]: one for one in found["facets"]}
    assert facets["topic"]["values"] == [{"value": "orders", "message_count": 1, "term": "topic:orders"}]
    assert (len(facets["verdict"]["values"]), "group" in facets) == (1, False)
    assert "CG2" in get(of_lake, "/search/names")["names"]["group"]
    assert get(of_lake, "/search/names", topic="none")["names"]["group"] == []


def test_verdicts_over_time_count_every_message_once(of_lake: httpx.Client) -> None:
    """The sum over time of COMPLETE, INCOMPLETE and UNKNOWN is the number of messages with a time."""
    found = get(of_lake, "/verdicts")
    assert found["message_count"] == len(NAMES)
    knowledge = [one for one in found["counts"] if CODES[one["code"]].about == "knowledge"]
    assert sum(one["message_count"] for one in knowledge) == found["message_count"] - found["undated_count"]
    report = get(of_lake, "/report")
    hung = [one["message_count"] for one in report["codes"] if one["code"] == "HUNG"]
    assert [one["message_count"] for one in found["counts"] if one["code"] == "HUNG"] == hung


def test_report_tells_what_is_missing(of_lake: httpx.Client) -> None:
    """Gaps and rejects of the lake are in the report."""
    found = get(of_lake, "/report")
    assert found["rejects"] == 2
    assert len(found["gaps"]) == 1


def test_incidents_and_proofs(of_lake: httpx.Client, lake_path: Path) -> None:
    """They are searched, and the lake stays as it is: a GET writes nothing."""
    found = get(of_lake, "/incidents", **{"from": "2020-01-01"})
    assert found["first_ms"] is not None
    assert Answers(lake_path).kept_incidents() == ()
    proof = get(of_lake, "/prove", topic="orders")
    assert proof["topic"] == "orders"
    assert proof["claims"]


def test_latency(of_lake: httpx.Client, lake_path: Path) -> None:
    """It is that of `mqtrail latency`, of handlers by default; another part must exist."""
    found = get(of_lake, "/latency")
    assert found["segment"] == "handler"
    assert found["spans"] == [as_json(one) for one in Answers(lake_path).latency(LatencySegment.HANDLER, 0).spans]
    assert of_lake.get(f"{API_PREFIX}/latency", params={"part": "gone"}).status_code == 422


def test_dead_letters(of_lake: httpx.Client) -> None:
    """They are those of `mqtrail dead-letters`; an empty error means an unknown one."""
    found = get(of_lake, "/dead-letters", group="CG", error="")
    assert [one["msg_id"] for one in found["letters"]] == [id_of("dead, attempts exhausted")]
    assert get(of_lake, "/dead-letters", error="gone")["matched_count"] == 0


def test_export_is_one_object_a_line(of_lake: httpx.Client, lake_path: Path) -> None:
    """The lines are those of `mqtrail export`."""
    response = of_lake.get(f"{API_PREFIX}/export")
    assert response.headers["content-type"].startswith("application/jsonl")
    assert [json.loads(line) for line in response.text.splitlines()] == list(Answers(lake_path).export(0))


def test_cluster(api: httpx.Client, shop: Shop) -> None:
    """Brokers, topics, groups, members and lag are those of the cluster, each with its time."""
    (broker,) = get(api, "/brokers")["brokers"]
    assert (broker["cluster"], broker["broker_id"]) == ("DefaultCluster", 0)
    assert broker["counters"]["brokerVersionDesc"] == broker["version"]
    topics = {one["name"]: one for one in get(api, "/topics")["topics"]}
    assert topics["orders"]["is_business"]
    assert not topics["%RETRY%billing"]["is_business"]
    assert "billing" in [one["name"] for one in get(api, "/groups")["groups"]]
    found = get(api, "/lag", group="billing")
    assert found["scope"]["as_of_ms"] == found["lag"]["as_of_ms"]
    assert [one["group_name"] for one in found["waits"]] == ["billing"]
    assert found["lag"]["groups"][0]["queues"]
    members = get(api, "/members", group="billing")
    assert members["members"] == []  # the consumer has left
    assert get(api, "/doctor", sample=10)["brokers"][0]["name"] == broker["name"]


def test_without_a_source(of_lake: httpx.Client, shop: Shop) -> None:
    """A question to a source that there is not names the option to pass."""
    assert problem(of_lake, "/lag") == (404, "found no cluster: start this program with --namesrv HOST:PORT")
    with asking(Sources.open(None, shop.namesrv)) as client:
        assert problem(client, "/report") == (404, "found no lake: start this program with --lake DIR")


def test_sources_that_fail(tmp_path: Path) -> None:
    """A lake that is not there and a cluster that does not answer are problems, not empty answers."""
    with asking(Sources.open(tmp_path, "127.0.0.1:1")) as client:
        assert problem(client, "/search")[0] == 502
        status, detail = problem(client, "/lag")
        assert status == 502
        assert "127.0.0.1:1" in detail
        assert get(client, "/trace", id="x")["status"] == "CANNOT_LOOK"


@pytest.mark.parametrize(
    ("path", "parameters", "expected"),
    [
        ("/trace", {}, "id: Field required"),
        ("/trace", {"id": " "}, "expected a message's id or a key"),
        ("/search", {"q": "verdict:LOSTT"}, "verdict: found 'LOSTT'"),
        ("/search", {"limit": 0}, "limit: "),
        ("/search/facets", {"q": "color:red"}, "found 'color:red', expected one of"),
        ("/search/facets", {"values": 101}, "values: "),
        ("/report", {"from": "yesterday"}, "found 'yesterday', expected a time"),
        ("/lag", {"over": "1h"}, "over: found '1h'"),
    ],
)
def test_wrong_parameters(api: httpx.Client, path: str, parameters: dict[str, Any], expected: str) -> None:
    """A parameter that is wrong is named, with what was expected."""
    status, detail = problem(api, path, **parameters)
    assert status == 422
    assert expected in detail


def test_unknown_cluster_and_path(of_lake: httpx.Client) -> None:
    assert problem(of_lake, "/report", cluster="other")[0] == 404
    assert problem(of_lake, "/nothing")[0] == 404
    response = of_lake.post(f"{API_PREFIX}/search")
    assert (response.status_code, response.headers["content-type"]) == (405, "application/problem+json")


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 200),
        ({"host": "localhost:9870"}, 200),
        ({"host": "[::1]:9870"}, 200),
        ({"host": "127.0.0.1:9870", "origin": "http://127.0.0.1:9870"}, 200),
        ({"host": "127.0.0.1:9870", "origin": "http://127.0.0.1:8080"}, 403),
        ({"host": "rebound.example:9870"}, 403),
        ({"host": "127.0.0.1.example:9870"}, 403),
        ({"host": "[::1"}, 403),
        ({"host": ""}, 403),
        ({"origin": "http://evil.example"}, 403),
        ({"origin": "null"}, 403),
    ],
)
def test_only_this_machine_asks(of_lake: httpx.Client, headers: dict[str, str], status: int) -> None:
    """A name that resolves to 127.0.0.1, or a page of another site, is refused; no header opens the API to others."""
    response = of_lake.get("/openapi.json", headers=headers)
    assert response.status_code == status
    assert not [name for name in response.headers if name.startswith("access-control")]


def test_bodies_are_bounded(of_lake: httpx.Client) -> None:
    """A request that announces a large body is refused before it is read."""
    connection = HTTPConnection(of_lake.base_url.host, of_lake.base_url.port, timeout=60)
    connection.putrequest("POST", f"{API_PREFIX}/search")
    connection.putheader("content-length", "99999999")
    connection.endheaders()
    assert connection.getresponse().status == 413
    connection.close()


def test_web_sockets_of_other_sites_are_refused(of_lake: httpx.Client) -> None:
    """A browser lets any page open a WebSocket to this machine, and names the page in Origin."""
    address = str(of_lake.base_url).replace("http", "ws")
    with pytest.raises(InvalidStatus) as refused, connect(address, origin=Origin("http://evil.example")):
        pass
    assert refused.value.response.status_code == 403


async def test_a_question_has_a_time_out_and_keeps_its_place() -> None:
    """A thread cannot be stopped: its question counts until it ends, and then others are taken again."""
    workers, end = Workers(waiting_max=1, timeout_s=0.05), threading.Event()
    with pytest.raises(Problem) as late:
        await workers.run(end.wait)
    assert late.value.status == 504
    with pytest.raises(Problem) as full:
        await workers.run(end.wait)
    assert full.value.status == 503
    end.set()
    async with asyncio.timeout(60):
        while workers.asked_count:
            await asyncio.sleep(0)
    assert await workers.run(lambda: 42) == 42
    workers.close()


def _paths() -> list[str]:
    return sorted(make_api(Sources.open(None, "127.0.0.1:1")).openapi()["paths"])


@pytest.mark.parametrize("path", _paths())
def test_every_answer_is_as_described(api: httpx.Client, path: str) -> None:
    """Whatever is asked, status, media type and body are those of the OpenAPI description.

    Times and conditions are texts with a grammar of their own, so a text that the description allows may be refused.
    """
    description = api.get("/openapi.json").json()
    operation = schemathesis.openapi.from_dict(description)[path]["GET"]

    @settings(max_examples=8, deadline=None, suppress_health_check=list(HealthCheck))
    @given(case=operation.as_strategy())
    def ask(case: schemathesis.Case[Any]) -> None:
        case.call_and_validate(base_url=str(api.base_url).rstrip("/"), excluded_checks=[positive_data_acceptance])

    ask()


EVIL = "\u202e\x9b\x7f\u2066"


def test_problems_are_harmless_in_a_terminal(of_lake: httpx.Client) -> None:
    """Characters that control a terminal or are invisible are escaped."""
    text = of_lake.get(f"{API_PREFIX}/search", params={"q": f"verdict:{EVIL}"}).text
    assert "\\u202e" in text
    assert not set(EVIL) & set(text)


def test_answers_are_harmless_in_a_terminal(monkeypatch: pytest.MonkeyPatch, of_lake: httpx.Client) -> None:
    """The same for an answer with texts of messages."""
    answer = SearchAnswer(Scope(0, sources=(EVIL,)), 0, ())
    monkeypatch.setattr(Answers, "search", lambda *_: answer)
    text = of_lake.get(f"{API_PREFIX}/search").text
    assert "\\u202e" in text
    assert not set(EVIL) & set(text)


def test_escaped_json_means_the_same() -> None:
    body = bytes(VisibleJson({EVIL: [EVIL, "订单"]}).body).decode()
    assert json.loads(body) == {EVIL: [EVIL, "订单"]}
    assert not set(EVIL) & set(body)
