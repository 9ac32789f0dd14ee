"""References of fastjson, {"$ref": path}: replaced by their targets, and counted before any reader visits the
values."""

import re
from typing import Any

from .errors import BodyError
from .json_bounds import DEPTH_MAX, NODES_PER_STEP, REFERENCE_SIZE_MAX, TEXT_PER_NODE, ObjectKey, nodes_of_references


def resolved(root: Any, size: int, nodes_max: int) -> Any:
    """Return root with each {"$ref": path} replaced by its target; None replaces a path without a target.

    size: characters of the text. BodyError: the result would contain itself, nest deeper than DEPTH_MAX, or have more
    values and names than nodes_of_references allows.
    """
    return _Resolver(root, nodes_of_references(size, nodes_max)).resolve()


_PATH_STEP = re.compile(r"\.([^.\[]+)|\[(\d{1,9})\]")


class _Resolver:
    """Replaces references in place. Each value of the text is visited once; shared values stay shared."""

    __slots__ = ("_left", "_nodes_max", "_root")

    def __init__(self, root: Any, nodes_max: int) -> None:
        self._root = root
        self._nodes_max = nodes_max
        self._left = nodes_max

    def resolve(self) -> Any:
        root = self._root = self._replace(self._root, (), 0)
        if not isinstance(root, dict | list):
            return root
        _, nodes = self._measure(root, {}, 0)
        if nodes > self._nodes_max:
            raise self._too_many()
        return root

    def _too_many(self) -> BodyError:
        return BodyError(
            f"found JSON references ($ref) to more values and names than the {self._nodes_max} that a "
            "text of this size may have"
        )

    def _replace(self, value: Any, parents: tuple[Any, ...], depth: int) -> Any:
        if depth > DEPTH_MAX:
            raise BodyError(f"JSON nested deeper than {DEPTH_MAX}")
        if isinstance(value, dict):
            if len(value) == 1 and isinstance(path := value.get("$ref"), str):
                return self._target(path, parents)
            for key, member in value.items():
                if isinstance(member, dict | list):
                    value[key] = self._replace(member, (*parents, value), depth + 1)
        elif isinstance(value, list):
            for number, item in enumerate(value):
                if isinstance(item, dict | list):
                    value[number] = self._replace(item, (*parents, value), depth + 1)
        return value

    def _target(self, path: str, parents: tuple[Any, ...]) -> Any:
        """Find what a path names: "$" the root, ".." the object that holds this one's holder, "$.a[0].b" a step each.

        Steps count like values, so many references to one long chain of references reach the limit as a large text
        does, and so do chains whose members all refer to the next one. A path with anything but steps has no target.
        """
        if path == "..":
            return parents[-2] if len(parents) > 1 else None
        for _ in range(DEPTH_MAX):  # a reference may point to a reference
            if not path.startswith("$") or len(path) > REFERENCE_SIZE_MAX:
                return None
            found = self._root
            position = 1
            while position < len(path):
                self._left -= NODES_PER_STEP
                if self._left < 0:
                    raise self._too_many()
                step = _PATH_STEP.match(path, position)
                if step is None:
                    return None
                name, number = step.groups()
                position = step.end()
                try:
                    found = found[name] if name else found[int(number)]
                except (KeyError, IndexError, TypeError):
                    return None
            if not (isinstance(found, dict) and len(found) == 1 and isinstance(found.get("$ref"), str)):
                return found
            path = found["$ref"]
        return None

    def _measure(self, value: Any, known: dict[int, tuple[int, int] | None], depth: int) -> tuple[int, int]:
        """Return the depth of value and its number of values and names; each shared part is visited once.

        BodyError: too deep, or it contains itself.
        """
        measured = known.get(id(value), (0, 0))
        if measured is None or depth + measured[0] > DEPTH_MAX:
            raise BodyError(f"JSON references nest deeper than {DEPTH_MAX}, or in a circle")
        if measured[1]:
            return measured
        known[id(value)] = None  # while it is being measured
        nested, nodes = 0, 1 + (sum(map(_weight, value)) if isinstance(value, dict) else 0)
        for member in value.values() if isinstance(value, dict) else value:
            if isinstance(member, dict | list):
                member_nested, member_nodes = self._measure(member, known, depth + 1)
                nested, nodes = max(nested, member_nested), nodes + member_nodes
            else:
                nodes += _weight(member)
        known[id(value)] = 1 + nested, nodes
        return 1 + nested, nodes


def _weight(value: Any) -> int:
    """Return how many values a name or plain value counts for: one, or more for a long text."""
    if isinstance(value, str):
        return 1 + len(value) // TEXT_PER_NODE
    return sum(1 + _weight(member) for _, member in value) if isinstance(value, ObjectKey) else 1
