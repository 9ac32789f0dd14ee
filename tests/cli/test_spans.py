"""`mqtrail spans`: endpoints, names and headers from options and OpenTelemetry's variables, and its exit codes."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from mqtrail.cli import spans
from tests.answers.collectors import FakeCollector
from tests.cli.conftest import Command


@pytest.fixture
def lake(lake_path: Path, tmp_path: Path) -> Path:
    """A copy that a test may change."""
    return Path(shutil.copytree(lake_path, tmp_path / "lake"))


def operations(collector: FakeCollector) -> set[str]:
    """The attribute names that have the operation."""
    return {a.key for span in collector.received for a in span.attributes if "operation" in a.key}


def test_exported_once(mqtrail: Command, collector: FakeCollector, lake: Path) -> None:
    """The output has the number of exported messages; the next export has none."""
    result = mqtrail("spans", "--lake", str(lake), "--endpoint", collector.url)
    count = len(collector.messages())
    assert (result.code, result.out) == (
        0,
        f"exported {count} messages as {len(collector.received)} spans to {collector.url}/v1/traces\n",
    )
    result = mqtrail("spans", "--lake", str(lake), "--endpoint", collector.url, "--json")
    assert result.json["messages"] == 0
    assert result.json["is_whole"]


@pytest.mark.slow
def test_cluster(mqtrail: Command, collector: FakeCollector, lake: Path) -> None:
    """Only the messages of the cluster; an unknown one is named with the known ones."""
    of_one = mqtrail("spans", "--lake", str(lake), "--endpoint", collector.url, "--cluster", "send slow", "--json")
    assert of_one.json["messages"] == len(collector.messages()) == 1
    result = mqtrail("spans", "--lake", str(lake), "--endpoint", collector.url, "--cluster", "north")
    assert result.code == 3
    assert "found no cluster 'north', expected one of consumed after retry" in result.err


@pytest.mark.parametrize(
    ("opted", "option", "expected"),
    [
        ("", (), {"messaging.operation"}),
        ("http, messaging", (), {"messaging.operation.name", "messaging.operation.type"}),
        (
            "messaging/dup",
            (),
            {"messaging.operation", "messaging.operation.name", "messaging.operation.type"},
        ),
        ("messaging", ("--names", "old"), {"messaging.operation"}),
    ],
)
def test_names(
    mqtrail: Command,
    collector: FakeCollector,
    lake: Path,
    monkeypatch: pytest.MonkeyPatch,
    opted: str,
    option: tuple[str, ...],
    expected: set[str],
) -> None:
    """OTEL_SEMCONV_STABILITY_OPT_IN chooses; the option overrides it."""
    monkeypatch.setenv(spans.OPT_IN, opted)
    assert mqtrail("spans", "--lake", str(lake), "--endpoint", collector.url, *option).code == 0
    assert operations(collector) == expected


def test_variables(mqtrail: Command, collector: FakeCollector, lake: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The base endpoint gets the path of traces, the endpoint of traces is taken as it is. Headers are decoded."""
    monkeypatch.setenv(spans.ENDPOINT, f"{collector.url}/base/")
    monkeypatch.setenv(spans.HEADERS, "api-key=a%20b, x = y")
    assert mqtrail("spans", "--lake", str(lake)).code == 0
    assert collector.paths == ["/base/v1/traces"]
    assert (collector.headers[0]["api-key"], collector.headers[0]["x"]) == ("a b", "y")
    monkeypatch.setenv(spans.TRACES_ENDPOINT, f"{collector.url}/mine")
    assert mqtrail("spans", "--lake", str(lake)).code == 0
    assert collector.paths[-1] == "/mine"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "found no --endpoint"),
        (("--endpoint", "localhost:4318"), "--endpoint: found 'localhost:4318', expected http://HOST:PORT"),
        (("--endpoint", "http://h:x"), "--endpoint: found 'http://h:x', expected http://HOST:PORT"),
        (("--endpoint", "http://h", "--names", "newer"), "--names: found 'newer', expected old, new or both"),
        (("--endpoint", "http://h", "--interval", "soon"), "--interval: found 'soon'"),
    ],
)
def test_wrong_options(mqtrail: Command, lake: Path, words: tuple[str, ...], message: str) -> None:
    """Exit code 2, in one line."""
    found = mqtrail("spans", "--lake", str(lake), *words)
    assert (found.code, len(found.err.splitlines())) == (2, 1)
    assert message in found.err


def test_headers_are_not_shown(mqtrail: Command, lake: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Errors do not show headers, because they may be secrets."""
    for text in ("secret", "a=1,=secret", "a=sec\x07ret"):
        monkeypatch.setenv(spans.HEADERS, text)
        found = mqtrail("spans", "--lake", str(lake), "--endpoint", "http://h")
        assert found.code == 2
        assert "secret" not in found.err
        assert "expected name=value" in found.err


def test_no_collector_and_no_lake(mqtrail: Command, lake: Path, tmp_path: Path, collector: FakeCollector) -> None:
    """Exit code 3: the error has the status of a refusal, or names a folder without a lake."""
    collector.answers = [(403, {}, b"no")]
    found = mqtrail("spans", "--lake", str(lake), "--endpoint", collector.url)
    assert found.code == 3
    assert "found status 403 no" in found.err
    found = mqtrail("spans", "--lake", str(tmp_path / "nothing"), "--endpoint", collector.url)
    assert found.code == 3
    assert "no lake at" in found.err


def test_follow(mqtrail: Command, lake: Path, collector: FakeCollector, monkeypatch: pytest.MonkeyPatch) -> None:
    """It goes on after a failure of the collector, until a signal; then exit code 0."""
    collector.answers = [(400, {}, b"not yet")]
    monkeypatch.setattr(spans, "stop_on_signals", lambda stop: setattr(collector, "on_spans", stop.set))
    found = mqtrail("spans", "--lake", str(lake), "--endpoint", collector.url, "--follow", "--interval", "1s")
    assert found.code == 0
    assert "found status 400 not yet" in found.err
    assert "exported" in found.out
