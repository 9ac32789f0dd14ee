"""Rules of the house that no linter has: one style of imports, unique class names, short functions."""

import ast
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

SOURCE = Path(__file__).parents[1] / "src" / "mqtrail"

LINES_MAX = 60
LONG = {
    # The fast lane is one loop with few calls, see docs/design/node.md.
    "broker/lane/process.py": {"process", "_commit"},
    "broker/lane/pulls.py": {"serve"},
    # Hot paths too: a call per record costs more than the division would gain.
    "store/commitlog/append.py": {"append"},
    "store/commitlog/reading.py": {"read"},
    "wire/record.py": {"encode_record", "decode_head"},
}
"""File -> functions that may have more than LINES_MAX lines."""


BLOCKS = ("body", "orelse", "finalbody", "handlers", "cases")
Named = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


@cache
def _nodes() -> tuple[tuple[str, ast.ImportFrom | Named], ...]:
    """File and node of each import, class and function. One walk serves all rules; the trees are not kept."""
    return tuple(
        (path.relative_to(SOURCE).as_posix(), node)
        for path in sorted(SOURCE.rglob("*.py"))
        for node in _statements(ast.parse(path.read_text("utf-8")))
    )


def _statements(tree: ast.Module) -> Iterator[ast.ImportFrom | Named]:
    """Yield them without their bodies, and without a walk through expressions, which hold none of them."""
    waiting: list[ast.AST] = [tree]
    while waiting:
        node = waiting.pop()
        waiting += [inner for name in BLOCKS for inner in getattr(node, name, ())]
        if isinstance(node, Named):
            node.body = []  # it was walked; the nodes are kept
        if isinstance(node, ast.ImportFrom | Named):
            yield node


def test_imports_are_relative_inside_a_room_and_absolute_across() -> None:
    """`from .frame import …` in wire, `from mqtrail.wire import …` elsewhere."""
    wrong = []
    for name, node in _nodes():
        if isinstance(node, ast.ImportFrom):
            room = name.split("/")[0]
            depth = name.count("/")
            module = node.module or ""
            is_own = module == f"mqtrail.{room}" or module.startswith(f"mqtrail.{room}.")
            if (node.level == 0 and is_own) or (depth and node.level > depth):
                wrong.append(f"{name}:{node.lineno}")
    assert wrong == []


def test_rooms_import_each_other_only_through_their_package() -> None:
    """A room's __init__ lists its public names. demo.run is outside it, because it imports Spark;
    clock is a room of one module."""
    packages = {path.parent.relative_to(SOURCE).as_posix() for path in SOURCE.rglob("__init__.py")} - {"."}
    wrong = []
    for name, node in _nodes():
        if isinstance(node, ast.ImportFrom):
            module = (node.module or "").split(".")
            if node.level == 0 and module[0] == "mqtrail" and len(module) > 1 and module[1] != name.split("/")[0]:
                path = "/".join(module[1:])
                if path not in packages | {"demo/run", "clock"} and (SOURCE / f"{path}.py").exists():
                    wrong.append(f"{name}:{node.lineno}: {node.module}")
    assert wrong == []


def test_class_names_are_unique() -> None:
    """A reader who searches for a class finds one."""
    places: dict[str, list[str]] = defaultdict(list)
    for name, node in _nodes():
        if isinstance(node, ast.ClassDef):
            places[node.name].append(f"{name}:{node.lineno}")
    assert {name: where for name, where in places.items() if len(where) > 1} == {}


def test_functions_are_short() -> None:
    """A function fits on a screen; LONG lists no shorter one."""
    long = {
        (name, node.name)
        for name, node in _nodes()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and (node.end_lineno or 0) - node.lineno + 1 > LINES_MAX
    }
    assert long == {(name, function) for name, functions in LONG.items() for function in functions}
