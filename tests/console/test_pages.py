"""The HTTP response of a page, without a browser: its frame, its headers, and no markup from messages."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.answers.lakes import make_lake, rows_of
from tests.console.serving import console, running


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    """A console over a cluster that does not answer."""
    with console(namesrv="127.0.0.1:1") as url, httpx.Client(base_url=url, timeout=60) as client:
        yield client


@pytest.mark.parametrize(
    "path",
    [
        "/",
        "/search",
        "/message?id=x",
        "/incidents",
        "/incident?id=x",
        "/dead-letters?group=x&error=",
        "/groups",
        "/group?name=x",
        "/client?group=x&id=y",
        "/latency",
        "/cluster",
        "/topic?name=x",
        "/broker?name=x",
        "/replication",
        "/name-servers",
        "/broker-access",
        "/delayed",
        "/transactions",
        "/pops",
        "/pipeline",
        "/alerts",
        "/stored",
    ],
)
def test_every_page_opens(pages: httpx.Client, path: str) -> None:
    """Pages open without a lake, and while the cluster is down: their parts report that."""
    answer = pages.get(path)
    assert answer.status_code == 200
    assert "default-src 'self'" in answer.headers["content-security-policy"]
    assert "frame-ancestors 'none'" in answer.headers["content-security-policy"]
    assert "https://" not in answer.text.replace("https://www.w3.org", "")


def test_commands_of_an_empty_page_are_lines(pages: httpx.Client) -> None:
    """Each can be copied; a line break in a text is shown as an escape."""
    page = pages.get("/").text.replace("&quot;", '"')
    for line in ("mqtrail pipeline once --namesrv HOST:PORT --lake DIR", "mqtrail console --lake DIR"):
        assert f'"text":"{line}"' in page


@pytest.mark.parametrize("encodings", ["identity", "gzip, deflate, br, zstd"])
def test_every_script_of_a_page_has_its_nonce(pages: httpx.Client, encodings: str) -> None:
    """Else the browser runs none of them. Files are compressed for browsers that take it, pages are not."""
    answer = pages.get("/", headers={"accept-encoding": encodings})
    (nonce,) = re.findall("'nonce-([^']+)'", answer.headers["content-security-policy"])
    scripts = re.findall("<script[^>]*>", answer.text)
    assert scripts
    assert all(f'nonce="{nonce}"' in one for one in scripts)
    assert "content-encoding" not in answer.headers
    (path,) = re.findall(r'src="(/_nicegui/[^"]+/nicegui\.js)"', answer.text)
    file = pages.get(path, headers={"accept-encoding": encodings})
    assert file.headers.get("content-encoding", "identity") == encodings.split(",")[0]


@pytest.mark.parametrize(
    "words", ["</script><script>alert(1)</script>", "`${alert(1)}", "<img src=x onerror=alert(1)>"]
)
def test_words_of_the_address_are_no_markup(pages: httpx.Client, words: str) -> None:
    """A link from another person cannot contain a script."""
    for path, name in (("/search", "q"), ("/message", "id"), ("/group", "name"), ("/dead-letters", "error")):
        page = pages.get(path, params={name: words}).text
        assert words not in re.sub("<title>[^<]*</title>", "", page)


@pytest.mark.parametrize(
    ("to", "expected"),
    [("/groups", "/groups"), ("//evil.example", "/"), ("https://evil.example", "/"), ("/\\evil.example", "/")],
)
def test_choices_are_kept_in_cookies(pages: httpx.Client, to: str, expected: str) -> None:
    """After a choice the cookie's redirect leads only to a page of this server."""
    answer = pages.get("/preferences", params={"language": "zh", "theme": "dark", "to": to})
    assert (answer.status_code, answer.headers["location"]) == (303, expected)
    assert "mqtrail-language=zh" in answer.headers["set-cookie"]
    assert "首页" in pages.get("/", headers={"cookie": "mqtrail-language=zh"}).text


def test_nothing_is_stored(pages: httpx.Client) -> None:
    """The framework's storage is off: no folder appears where the console was started."""
    pages.get("/")
    assert not Path(".nicegui").exists()


@pytest.mark.slow
def test_libraries_without_a_use_are_not_loaded(tmp_path: Path) -> None:
    """Answers of a lake need DuckDB, but neither Arrow nor arrays nor what watches files: they would take 50 MB."""
    make_lake(tmp_path / "lake", rows_of(["hung"]))
    with running(tmp_path / "lake") as (url, process):
        for question in ("report", "verdicts", "incidents", "search", "search/facets", "search/names", "trace?id=x"):
            assert httpx.get(f"{url}/api/v1/{question}", timeout=60).status_code == 200
        mapped = Path(f"/proc/{process}/maps").read_text()
    assert "/_duckdb." in mapped
    assert re.findall(r"/(?:_multiarray_umath|lib|libarrow|_rust_notify)\.\S+", mapped) == []
