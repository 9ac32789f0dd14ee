"""The architecture page names existing files, and its drawing has every room."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "mqtrail"
TEXT = (ROOT / "docs" / "design" / "architecture.md").read_text("utf-8")


def missing_files() -> list[str]:
    """Return paths in the tables that do not exist in the repository, in the package, or beside the path before."""
    missing = []
    for row in (line for line in TEXT.splitlines() if line.startswith("|")):
        folder = PACKAGE
        for path in re.findall(r"`([\w/]+(?:\.py|/))`", row):
            places = [root / path for root in (ROOT, PACKAGE, folder, PACKAGE / "broker")]
            found = next((place for place in places if place.exists()), None)
            if found is None:
                missing.append(path)
            else:
                folder = found.parent
    return missing


def test_every_named_file_exists() -> None:
    """Moving a file requires changing its row."""
    assert missing_files() == []


def test_every_room_is_drawn() -> None:
    """Each package of mqtrail is in the drawing."""
    drawing = TEXT.split("```")[1]
    rooms = {path.parent.name for path in PACKAGE.glob("*/__init__.py")}
    assert {room for room in rooms if not re.search(rf"\b{room}\b", drawing)} == set()
