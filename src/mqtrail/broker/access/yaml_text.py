"""Reads and writes the YAML text of ACL files. It is a separate module because few brokers need the YAML library."""

import re
from collections.abc import Mapping
from itertools import chain
from typing import Any, Final

import yaml

from mqtrail.wire import InvalidParameter

ALIASED_MAX: Final = 10_000  # a file may expand to this many values plus one for each of its characters
_QUOTED: Final = re.compile(r"'[^']*'|\"[^\"]*\"")  # quotations from the file in messages of the YAML reader


def read_yaml(name: str, text: str) -> Any:
    """Return the value of a YAML text, as safe_load does. name: of the file, for the error.

    InvalidParameter: it is not YAML, or its aliases expand to too many values.
    """
    try:
        return _load(name, text)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise InvalidParameter(f"{name}: found invalid YAML: {_yaml_problem(error)}") from None


def write_yaml(document: Mapping[str, Any]) -> str:
    """Return the text of a document, its keys in their order."""
    return str(yaml.safe_dump(dict(document), sort_keys=False, allow_unicode=True, default_flow_style=False))


def _load(name: str, text: str) -> Any:
    loader = yaml.SafeLoader(text)
    try:
        node = loader.get_single_node()
        if node is None:
            return None
        count, count_max = _expanded_count(node, {}), len(text) + ALIASED_MAX
        if count > count_max:
            raise InvalidParameter(
                f"{name}: found aliases that expand to {count} values, expected at most {count_max}: write the "
                "accounts out"
            )
        return loader.construct_document(node)
    finally:
        loader.dispose()


def _expanded_count(node: yaml.Node, known: dict[int, int]) -> int:
    """Return how many values a document has if each alias is written out. known: counts of lists and maps by id.

    Aliases of aliases let a short text expand to more values than can be processed. RecursionError: an alias contains
    itself.
    """
    if isinstance(node, yaml.ScalarNode):
        return 1
    if (count := known.get(id(node))) is None:
        parts = chain.from_iterable(node.value) if isinstance(node, yaml.MappingNode) else node.value
        count = known[id(node)] = 1 + sum(_expanded_count(part, known) for part in parts)
    return count


def _yaml_problem(error: Exception) -> str:
    """Return the error and its position, without the line itself, which may contain a secret key."""
    if not isinstance(error, yaml.MarkedYAMLError) or error.problem_mark is None:
        return type(error).__name__
    mark = error.problem_mark
    return f"{_QUOTED.sub('…', error.problem or 'a wrong character')}, line {mark.line + 1}, column {mark.column + 1}"
