"""The container file: what it copies, runs and checks exists, and the process has no rights."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path

from tests.docs.test_reference import COMMANDS, ROOT

TEXT = re.sub(r"\\\n", " ", (ROOT / "Containerfile").read_text("utf-8"))
FINAL = TEXT[TEXT.rindex("\nFROM ") :]
"""The instructions of the image itself; those before are of the stage that builds."""


def instruction(name: str, text: str = FINAL) -> str:
    """What follows the only instruction of this name."""
    (found,) = re.findall(rf"^{name}\s+(.+)$", text, re.MULTILINE)
    return str(found)


def options(arguments: list[str]) -> dict[str, str]:
    """Options with their values."""
    return dict(zip(arguments[::2], arguments[1::2], strict=True))


def test_the_command_exists() -> None:
    """The entry point is the command of the wheel, and each option of CMD is one of its."""
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["scripts"]
    (entry,) = json.loads(instruction("ENTRYPOINT"))
    assert entry in scripts
    command, *arguments = json.loads(instruction("CMD"))
    known = {option for one in COMMANDS[command].params for option in one.opts}
    assert set(options(arguments)) <= known


def test_the_health_check_asks_the_port_of_the_command() -> None:
    """It would fail forever with another one; the code compiles."""
    check = json.loads(instruction("HEALTHCHECK").partition(" CMD ")[2])
    assert check[:2] == ["python3", "-c"]
    compile(check[2], "HEALTHCHECK", "exec")
    port = options(json.loads(instruction("CMD"))[1:])["--metrics-port"]
    assert f"http://127.0.0.1:{port}/metrics" in check[2]
    assert {port, "9876", "10911"} <= set(instruction("EXPOSE").split())


def test_it_runs_without_rights_and_owns_its_data() -> None:
    """The user is no root, and the folder of MQTRAIL_DATA is the volume, which belongs to that user."""
    user, group = instruction("USER").split(":")
    assert int(user)
    assert int(group)
    data = dict(one.split("=", 1) for one in instruction("ENV").split())["MQTRAIL_DATA"]
    assert instruction("VOLUME") == data
    assert f"-o {user} -g {group} -m 750 {data}" in instruction("RUN")


def test_what_it_copies_exists_and_is_not_ignored() -> None:
    """Each source of COPY is in the tree, and .dockerignore lets it in; extras are those of the project."""
    sources = re.findall(r"^COPY (?!--from)(.+) \S+$", TEXT, re.MULTILINE)
    named = [one for line in sources for one in line.split()]
    allowed = [one[1:] for one in (ROOT / ".dockerignore").read_text("utf-8").splitlines() if one.startswith("!")]
    assert named
    for name in named:
        assert (ROOT / name).exists(), name
        assert any(Path(one).is_relative_to(name.rstrip("/")) for one in allowed), name
    for one in allowed:
        assert list(ROOT.glob(one)), one
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    extras = re.findall(r"^ARG EXTRAS=(\S+)$", TEXT, re.MULTILINE)
    assert {name for one in extras for name in one.split(",")} <= project["optional-dependencies"].keys()
