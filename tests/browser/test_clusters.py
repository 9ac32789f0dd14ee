"""People's ways between the clusters of one console."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.answers.lakes import id_of, make_lake, rows_of
from tests.browser.conftest import Visit
from tests.console.serving import console

pytestmark = pytest.mark.browser
Begin = Callable[..., Visit]


def test_between_two_clusters_by_keyboard(visit: Begin, tmp_path: Path) -> None:
    """The switch leads to the same page of the other cluster; what fails in one is not on the pages of the other."""
    make_lake(tmp_path / "east", rows_of(["hung", "send ok"]))
    make_lake(tmp_path / "west", rows_of(["dead, attempts exhausted"]))
    file = tmp_path / "clusters.toml"
    file.write_text(
        f'[[clusters]]\nname = "east"\ntitle = "Shop, east"\nlake = "{tmp_path}/east"\n'
        f'[[clusters]]\nname = "west"\ntitle = "Shop, west"\nlake = "{tmp_path}/west"\nnamesrv = "127.0.0.1:1"\n'
    )
    with console(None, "", "--clusters", str(file), data=tmp_path / "data") as url:
        tab = visit(url)
        tab.open("/search?q=verdict%3AHUNG")
        assert tab.page.url == f"{url}/c/east/search?q=verdict%3AHUNG"
        tab.wait_for(id_of("hung"))
        switch = tab.page.locator("details.clusters summary")
        assert switch.inner_text() == "Cluster: Shop, east"
        switch.focus()
        tab.page.keyboard.press("Enter")
        tab.page.keyboard.press("Tab")
        tab.page.keyboard.press("Tab")
        assert tab.page.evaluate("document.activeElement.innerText") == "Shop, west"
        assert tab.violations() == []
        tab.shot("clusters")
        tab.page.keyboard.press("Enter")
        tab.page.wait_for_url(f"{url}/c/west/search?q=verdict%3AHUNG")
        tab.loaded()
        assert id_of("hung") not in tab.text()
        tab.page.locator("main h1").click()
        tab.page.keyboard.press("h")  # keys lead to pages of the same cluster
        tab.page.wait_for_url(f"{url}/c/west/")
        tab.wait_for("cannot connect to 127.0.0.1:1")
        tab.wait_for("DEAD")
        assert tab.violations() == []
        tab.page.fill("#query", "group:")
        tab.page.wait_for_selector("#query-options li")  # names come from the lake of this cluster
        tab.page.get_by_role("link", name="中文").click()
        tab.page.wait_for_url(f"{url}/c/west/")
        tab.page.get_by_text("集群: Shop, west").click()
        tab.page.get_by_role("link", name="Shop, east").click()
        tab.page.wait_for_url(f"{url}/c/east/")
        tab.loaded()
        assert "cannot connect" not in tab.text()
        small = visit(url, viewport={"width": 360, "height": 700})
        small.open("/c/east/groups")
        small.page.locator("details.clusters summary").click()
        assert small.page.evaluate("document.documentElement.scrollWidth") <= 360
        small.shot("clusters-small")
