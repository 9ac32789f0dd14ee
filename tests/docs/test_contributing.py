"""Facts stated in two files are equal: make targets, commit hooks, hosted CI and the project's metadata."""

from __future__ import annotations

import re
import tomllib
from itertools import chain
from pathlib import Path
from typing import Any

import yaml
from scripts.coverage_floors import compare, measured, with_floors

import mqtrail

ROOT = Path(__file__).parents[2]
MAKEFILE = (ROOT / "Makefile").read_text("utf-8")
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
TARGETS = set(re.findall(r"^([a-z]+):", MAKEFILE, flags=re.MULTILINE))


def recipe(target: str) -> list[str]:
    """Return the commands of a make target, without the path of the environment."""
    (found,) = re.findall(rf"^{target}:.*\n((?:\t.+\n)+)", MAKEFILE, flags=re.MULTILINE)
    return [line.strip().removeprefix("@").removeprefix("$(VENV)/") for line in found.splitlines()]


def test_commit_hooks_are_the_tools_of_make_check() -> None:
    """Each tool of `make check` is a hook, in the same order and from the same environment."""
    config = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text("utf-8"))
    hooks = [hook for repo in config["repos"] for hook in repo["hooks"]]
    assert all(hook["language"] == "system" for hook in hooks)
    entries = [hook["entry"].removeprefix(".venv/bin/").removesuffix(" --force-exclude") for hook in hooks]
    assert entries == [line.removesuffix(" $(CODE)") for line in recipe("check")]


def test_hosted_ci_runs_targets_that_exist() -> None:
    """Each suite of the workflow is a make target, and every part of .ci/run is in the workflow."""
    workflow = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text("utf-8"))
    steps = [step for job in workflow["jobs"].values() for step in job["steps"]]
    run = {target for step in steps for target in re.findall(r"^make ([a-z]+)", step.get("run", ""))}
    run |= set(workflow["jobs"]["slow"]["strategy"]["matrix"]["suite"])
    assert run <= TARGETS
    assert set(re.findall(r"^part make ([a-z]+)", (ROOT / ".ci/run").read_text("utf-8"), flags=re.MULTILINE)) <= run


def test_hosted_ci_covers_the_versions_of_the_classifiers() -> None:
    """The matrix and the classifiers name the same versions of Python, and the lowest is requires-python."""
    workflow = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text("utf-8"))
    versions = workflow["jobs"]["test"]["strategy"]["matrix"]["python"]
    prefix = "Programming Language :: Python :: "
    classifiers = [
        one.removeprefix(prefix) for one in PROJECT["project"]["classifiers"] if one.startswith(prefix + "3.")
    ]
    assert versions == classifiers
    assert PROJECT["project"]["requires-python"] == f">={versions[0]}"


def test_every_target_has_a_line_of_help() -> None:
    """`make help` lists every target."""
    assert set(re.findall(r"^([a-z]+):.*## ", MAKEFILE, flags=re.MULTILINE)) | {"help"} >= TARGETS
    assert set(re.findall(r"^\.PHONY: (.+)$", MAKEFILE, flags=re.MULTILINE)[0].split()) == TARGETS


def test_the_version_is_written_once() -> None:
    """The package's `__version__` is the version of the project."""
    assert PROJECT["project"]["dynamic"] == ["version"]
    assert PROJECT["tool"]["setuptools"]["dynamic"]["version"] == {"attr": "mqtrail.__version__"}
    assert re.fullmatch(r"\d+\.\d+\.\d+", mqtrail.__version__)


def test_the_locks_hold_what_the_project_asks_for() -> None:
    """Each direct dependency has a row in its lock; one added without `make lock` has none."""
    extras, groups = PROJECT["project"]["optional-dependencies"], PROJECT["dependency-groups"]
    asked = {
        "all.lock": [*PROJECT["project"]["dependencies"], *chain.from_iterable(extras.values()), *groups["dev"]],
        "build.lock": groups["build"],
        "docs.lock": groups["docs"],
    }
    for lock, wanted in asked.items():
        locked = set(
            re.findall(r"^([a-z0-9-]+)==", (ROOT / "requirements" / lock).read_text("utf-8"), flags=re.MULTILINE)
        )
        names = {re.split(r"[^A-Za-z0-9-]", one)[0].lower() for one in wanted} - {"mqtrail"}
        assert names <= locked, f"{lock}: run make lock"


def test_floors_of_coverage() -> None:
    """A room at its floor passes; one below it, one without a floor and a floor without a room are each named."""
    report = {
        "files": {
            f"src/mqtrail/{file}": {"summary": {"covered_lines": run, "num_statements": count}}
            for file, run, count in (
                ("__init__.py", 0, 1),
                ("wire/a.py", 10, 10),
                ("wire/deep/b.py", 8, 10),
                ("store/a.py", 1, 2),
                ("net/a.py", 1, 2),
            )
        }
    }
    found = measured(report)
    assert found == {"wire": 90.0, "store": 50.0, "net": 50.0}
    assert compare(found, {"wire": 90, "store": 50, "net": 50})[1] == []
    wrong = compare(found, {"wire": 91, "store": 50, "cli": 5})[1]
    assert [line.split(":")[0] for line in wrong] == ["cli", "net", "wire"]
    text = "[a]\nb = 1\n\n[tool.mqtrail.coverage]\nwire = 1\nold = 2\n\n[c]\nd = 3\n"
    assert tomllib.loads(with_floors(text, {"wire": 89.9, "net": 50.0, "tiny": 0.5})) == {
        "a": {"b": 1},
        "tool": {"mqtrail": {"coverage": {"net": 48, "tiny": 0, "wire": 87}}},
        "c": {"d": 3},
    }


def test_every_room_has_a_floor_of_coverage() -> None:
    """Every package below mqtrail, and nothing else."""
    rooms = {path.parent.name for path in (ROOT / "src/mqtrail").glob("*/__init__.py")}
    floors = PROJECT["tool"]["mqtrail"]["coverage"]
    assert rooms == set(floors)
    assert all(0 < floor <= 100 for floor in floors.values())


def test_the_site_lists_every_page() -> None:
    """Each page is in the navigation once. `make docs` would only warn about a page without a link."""
    nav = (ROOT / "mkdocs.yml").read_text("utf-8").partition("\nnav:\n")[2]
    listed = re.findall(r"- (\S+\.md)$", nav, flags=re.MULTILINE)
    pages = {str(path.relative_to(ROOT / "docs")) for path in (ROOT / "docs").rglob("*.md")}
    made = {page for page in listed if page not in pages}  # pages that are made by scripts/docs_hooks.py
    assert len(listed) == len(set(listed))
    assert pages - set(listed) == set()
    assert all(page.startswith(("how-to/examples/", "reference/api/", "reference/")) for page in made), made


def test_the_readmes_name_every_extra() -> None:
    """Both tables of installation have each extra of the project."""
    for name in ("README.md", "README.zh.md"):
        text = (ROOT / name).read_text("utf-8")
        missing = {
            one for one in PROJECT["project"]["optional-dependencies"] if not re.search(rf"`{one}`|\[{one}[],]", text)
        }
        assert missing == set(), name
