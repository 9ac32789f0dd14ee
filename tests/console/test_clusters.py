"""Pages of several clusters: addresses, the switch between them, and what belongs to one of them."""

from __future__ import annotations

import re
from collections.abc import Iterator

import httpx
import pytest

from tests.answers.lakes import make_lake, rows_of
from tests.console.serving import console

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    """East has a lake, west a cluster that does not answer."""
    folder = tmp_path_factory.mktemp("clusters")
    make_lake(folder / "lake", rows_of(["hung"]))
    (folder / "clusters.toml").write_text(
        f'[[clusters]]\nname = "east"\ntitle = "Shop <b>"\nlake = "{folder}/lake"\n'
        '[[clusters]]\nname = "west"\nnamesrv = "127.0.0.1:1"\n'
    )
    options = ("--clusters", str(folder / "clusters.toml"), "--allow-changes")
    with console(None, "", *options, data=folder / "data") as url, httpx.Client(base_url=url, timeout=60) as client:
        yield client


@pytest.mark.parametrize(
    "path", ["/", "/search?q=x", "/message?id=x", "/incidents", "/cluster", "/alerts", "/pipeline", "/topic?name=x"]
)
@pytest.mark.parametrize("name", ["east", "west"])
def test_addresses_of_a_page_stay_in_its_cluster(pages: httpx.Client, name: str, path: str) -> None:
    """Each link, form, file and connection of a page begins with `/c/NAME`; only the switch leads elsewhere."""
    page = pages.get(f"/c/{name}{path}")
    assert page.status_code == 200
    found = set(re.findall(r'"(?:href|action|data-names)":"(/[^"]*)"', page.text.replace("&quot;", '"')))
    other = {"east": "west", "west": "east"}[name]
    switched = {"/message?id=x": "/"}.get(path, path)
    assert {one for one in found if not one.startswith(f"/c/{name}/")} == {f"/c/{other}{switched}"}
    assert f"/c/{name}/search" in found
    files = re.findall(r'(?:src="|url\(")(/[^"]+)"', page.text)
    assert files
    assert all(one.startswith(f"/c/{name}/_nicegui/") for one in files)
    assert f'prefix: "/c/{name}"' in page.text


def test_the_name_of_the_cluster_is_on_each_page(pages: httpx.Client) -> None:
    """In the title and in the switch, in both languages, as text."""
    page = pages.get("/c/east/groups").text
    assert "<title>Groups and lag – Shop &lt;b&gt; – mqtrail</title>" in page
    assert "Cluster: Shop " in page
    assert "Choose the cluster" in page
    assert "Shop <b>" not in page
    in_chinese = pages.get("/c/east/groups", headers={"cookie": "mqtrail-language=zh"}).text
    assert "集群: Shop " in in_chinese
    assert "选择集群" in in_chinese


def test_files_of_a_cluster_are_compressed(pages: httpx.Client) -> None:
    (path,) = re.findall(r'src="(/c/west/_nicegui/[^"]+/nicegui\.js)"', pages.get("/c/west/").text)
    file = pages.get(path, headers={"accept-encoding": "gzip"})
    assert (file.status_code, file.headers["content-encoding"]) == (200, "gzip")


def test_what_a_cluster_lacks_is_shown_as_its_table(pages: httpx.Client) -> None:
    """Line by line: a line break in a text is shown as an escape."""
    page = pages.get("/c/east/groups").text
    assert "The console has no name servers of this cluster." in page
    for line in ("[[clusters]]", 'name = \\"east\\"', 'namesrv = \\"HOST:PORT\\"'):
        assert f'"text":"{line}"' in page.replace("&quot;", '"')


def test_a_choice_leads_back_to_the_page(pages: httpx.Client) -> None:
    answer = pages.get("/c/west/preferences", params={"theme": "dark", "to": "/c/west/groups"})
    assert (answer.status_code, answer.headers["location"]) == (303, "/c/west/groups")


def test_searches_are_saved_for_one_cluster(pages: httpx.Client) -> None:
    """The form leads back to the search of its cluster."""
    fields = {"action": "save", "name": "late", "q": "verdict:HUNG"}
    origin = {"origin": str(pages.base_url).rstrip("/")}
    saved = pages.post("/c/east/saved-searches", data=fields, headers=origin)
    assert (saved.status_code, saved.headers["location"]) == (303, "/c/east/search?q=verdict%3AHUNG")
    fields["action"] = "remove"
    removed = pages.post("/c/west/saved-searches", data=fields, headers=origin)
    assert removed.headers["location"] == "/c/west/search?q=verdict%3AHUNG&unsaved=unknown"


def test_a_lake_alone_cannot_be_changed(pages: httpx.Client) -> None:
    assert pages.get("/c/west/change").status_code == 200
    assert pages.get("/c/east/change").status_code == 404
    assert pages.get("/c/east/api/v1/audit").status_code == 404
    assert pages.get("/c/west/api/v1/audit").json()["path"].endswith("/data/clusters/west/audit.jsonl")
