"""The file of `--clusters`: what is wrong in it, and which settings hold for which cluster."""

from __future__ import annotations

from pathlib import Path

import pytest

from mqtrail.answers.access import AccessConfig, AccessDesk, Accounts, Grant
from mqtrail.answers.changes import AuditLog
from mqtrail.cli.app import run
from mqtrail.cli.config import load
from mqtrail.cli.console_clusters import clusters_in, clusters_of

GOOD = '[[clusters]]\nname = "east"\nnamesrv = "10.1.0.5:9876"\n'


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "found 0 [[clusters]], expected 1 to 64"),
        ("x = ", "is not TOML"),
        ('lake = "x"', "found 'lake', expected tables [[clusters]] alone"),
        ('[clusters]\nname = "east"', "found one [clusters], expected a table [[clusters]] for each cluster"),
        (GOOD + 'lakes = "x"', "[[clusters]] 1, lakes: no such setting, expected lake"),
        (GOOD + "title = 5", "[[clusters]] 1, title: found 5, expected a string"),
        (GOOD + 'title = "\\u202egnp"', "title: found '\\u202egnp', expected 1 to 80 visible characters"),
        (GOOD + GOOD, "[[clusters]] 2: found name 'east' again, expected another one"),
        ('[[clusters]]\nname = "a/b"', "name: found 'a/b', expected 1 to 63 letters, digits or any of . _ -"),
        ('[[clusters]]\nnamesrv = "a:1"', "name: found '', expected 1 to 63 letters"),
        ('[[clusters]]\nname = "east"', "[[clusters]] 1: found neither namesrv nor lake, expected one or both"),
        (
            '[[clusters]]\nname = "east"\nnamesrv = "nonsense"',
            "namesrv: name server address: found 'nonsense', expected",
        ),
        ('[[clusters]]\nname = "east"\nlake = "none"', "lake: found no folder 'none', expected the lake"),
        (GOOD + 'config = "none.toml"', "config: found no settings file none.toml"),
        (GOOD + 'data = "d"\n' + GOOD.replace("east", "west") + 'data = "./d"', "found the data folder of 'east'"),
    ],
)
def test_a_wrong_file(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, text: str, expected: str
) -> None:
    """Neither console nor MCP server starts: exit code 2, with what was found, what was expected, and where."""
    monkeypatch.chdir(tmp_path)
    Path("clusters.toml").write_text(text, "utf-8")
    for command in ("console", "mcp"):
        assert run([command, "--port", "0", "--clusters", "clusters.toml"]) == 2
        assert expected in capsys.readouterr().err.replace("\n", " ")


@pytest.mark.parametrize(
    ("command", "option"),
    [
        ("console", "--lake"),
        ("console", "--namesrv"),
        ("console", "--audit-log"),
        ("mcp", "--lake"),
        ("mcp", "--namesrv"),
    ],
)
def test_options_that_the_file_has_for_each_cluster(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, command: str, option: str
) -> None:
    assert run([command, "--port", "0", "--clusters", str(tmp_path / "c.toml"), option, "x"]) == 2
    assert f"found {option} with --clusters, expected one of them" in capsys.readouterr().err.replace("\n", " ")


def test_a_file_that_is_not_there(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert run(["console", "--port", "0", "--clusters", str(tmp_path / "none.toml")]) == 2
    assert "none.toml cannot be read" in capsys.readouterr().err.replace("\n", "")


def test_each_cluster_has_its_own_sources_and_files(tmp_path: Path) -> None:
    """A lake or a cluster of the environment or of the console's settings is of no entry; credentials are shared."""
    (tmp_path / "lake").mkdir()
    (tmp_path / "west.toml").write_text('[credentials]\naccess_key = "of-west"\nsecret_key = "12345678"\n')
    (tmp_path / "west.toml").chmod(0o600)
    file = tmp_path / "clusters.toml"
    file.write_text(
        f'[[clusters]]\nname = "east"\ntitle = "Shop, east"\nlake = "{tmp_path}/lake"\n'
        f'[[clusters]]\nname = "west"\nnamesrv = "10.2.0.5:9876"\nconfig = "{tmp_path}/west.toml"\n'
        f'[[clusters]]\nname = "north"\nnamesrv = "10.3.0.5:9876"\ndata = "{tmp_path}/of-north"\n'
    )
    shared = tmp_path / "mqtrail.toml"
    shared.write_text(f'lake = "{tmp_path}/other"\n[credentials]\naccess_key = "shared"\nsecret_key = "12345678"\n')
    shared.chmod(0o600)
    settings = load(shared, {"NAMESRV_ADDR": "10.9.0.5:9876", "MQTRAIL_DATA": str(tmp_path / "data")})
    entries = clusters_in(file, settings)
    assert [entry.title for entry, _ in entries] == ["Shop, east", "west", "north"]
    served = clusters_of(entries, None, is_changing=True)
    east, west, north = served.all
    assert (east.sources.lake, east.sources.namesrv, east.changing) == (tmp_path / "lake", "", None)
    assert (west.sources.lake, west.sources.namesrv) == (None, "10.2.0.5:9876")
    keys = [one.sources.instance.credentials for one in served.all]
    assert [None if key is None else key.access_key for key in keys] == ["shared", "of-west", "shared"]
    assert (west.alerts.parent, north.alerts.parent) == (tmp_path / "data" / "clusters" / "west", tmp_path / "of-north")
    assert (tmp_path / "of-north" / "audit.jsonl").exists()  # a log that cannot be written is an error at the start
    served.close()


def test_roles_in_a_cluster_that_was_removed_are_named_at_the_start(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Of users, of groups of a provider, and by default; they hold nowhere."""
    (tmp_path / "c.toml").write_text(GOOD, "utf-8")
    settings = load(None, {"MQTRAIL_DATA": str(tmp_path)})
    config = AccessConfig(
        group_roles=("ops=operator@north:DefaultCluster",), default_roles=("viewer@east:DefaultCluster",)
    )
    access = AccessDesk(config, Accounts(tmp_path / "users.json"), AuditLog(tmp_path / "audit.jsonl"))
    access.accounts.add("ann", (Grant.parse("viewer"), Grant.parse("operator@west/orders")), "")
    clusters_of(clusters_in(tmp_path / "c.toml", settings), access, is_changing=False).close()
    assert "found roles in 'north', 'west', expected names of the clusters file" in capsys.readouterr().err


def test_the_example_of_the_docs_is_read(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The file of the how-to has every key, and no other."""
    page = Path(__file__).parents[2] / "docs" / "how-to" / "console-clusters.md"
    text = page.read_text("utf-8").partition("```toml\n")[2].partition("```")[0]
    monkeypatch.chdir(tmp_path)
    for name in ("east", "west"):
        text = text.replace(f"/srv/lakes/{name}", name).replace(f"/etc/mqtrail/{name}.toml", f"{name}.toml")
        Path(name).mkdir()
        Path(f"{name}.toml").write_text("")
    Path("clusters.toml").write_text(text.replace("/var/lib/mqtrail", str(tmp_path)))
    first = clusters_in(Path("clusters.toml"), load(None, {}))[0][0]
    assert all(getattr(first, name) for name in first.__dataclass_fields__)
