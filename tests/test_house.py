"""Rules of the house that no linter has: one style of imports, unique class names, short functions."""

import ast
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

SOURCE = Path(__file__).parents[1] / "src" / "mqtrail"

LINES_MAX = 60
LONG = {
    # The fast lane is one loop without calls, see docs/design/broker.md.
    "broker/lane/process.py": {"process", "_commit"},
    "broker/lane/pulls.py": {"serve"},
    # Hot paths too: a call per record costs more than the division would gain.
    "store/commitlog/append.py": {"append"},
    "store/commitlog/reading.py": {"read"},
    "wire/record.py": {"encode_record", "decode_head"},
}
"""File -> functions that may have more than LINES_MAX lines."""


@cache
def _files() -> dict[str, ast.Module]:
    return {path.relative_to(SOURCE).as_posix(): ast.parse(path.read_text("utf-8")) for path in SOURCE.rglob("*.py")}


def _imports(tree: ast.Module) -> Iterator[ast.ImportFrom]:
    return (node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom))


def test_imports_are_relative_inside_a_room_and_absolute_across() -> None:
    """`from .frame import …` in wire, `from mqtrail.wire import …` elsewhere."""
    wrong = []
    for name, tree in _files().items():
        room = name.split("/")[0]
        depth = name.count("/")
        for node in _imports(tree):
            module = node.module or ""
            is_own = module == f"mqtrail.{room}" or module.startswith(f"mqtrail.{room}.")
            if (node.level == 0 and is_own) or (depth and node.level > depth):
                wrong.append(f"{name}:{node.lineno}")
    assert wrong == []


def test_rooms_import_each_other_only_through_their_package() -> None:
    """A room's __init__ lists its public names. demo.run is outside it, because it imports Spark."""
    packages = {path.parent.relative_to(SOURCE).as_posix() for path in SOURCE.rglob("__init__.py")} - {"."}
    wrong = []
    for name, tree in _files().items():
        for node in _imports(tree):
            module = (node.module or "").split(".")
            if node.level == 0 and module[0] == "mqtrail" and len(module) > 1 and module[1] != name.split("/")[0]:
                path = "/".join(module[1:])
                if path not in packages | {"demo/run"} and (SOURCE / f"{path}.py").exists():
                    wrong.append(f"{name}:{node.lineno}: {node.module}")
    assert wrong == []


def test_class_names_are_unique() -> None:
    """A reader who searches for a class finds one."""
    places: dict[str, list[str]] = defaultdict(list)
    for name, tree in _files().items():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                places[node.name].append(f"{name}:{node.lineno}")
    assert {name: where for name, where in places.items() if len(where) > 1} == {}


def test_functions_are_short() -> None:
    """A function fits on a screen; LONG lists no shorter one."""
    long = {
        (name, node.name)
        for name, tree in _files().items()
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and (node.end_lineno or 0) - node.lineno + 1 > LINES_MAX
    }
    assert long == {(name, function) for name, functions in LONG.items() for function in functions}
