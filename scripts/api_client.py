"""Writes examples/console_api/client.py, typed from the description of the console's HTTP API. Run it after a change:

.venv/bin/python scripts/api_client.py
"""

from __future__ import annotations

import keyword
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

from mqtrail.answers import Sources
from mqtrail.answers.http import API_PREFIX, make_api

TARGET = Path(__file__).parents[1] / "examples" / "console_api" / "client.py"
HEAD = '''"""A typed client of the console's HTTP API. scripts/api_client.py makes it: do not edit it."""

from __future__ import annotations

from types import TracebackType
from typing import Any, Literal, TypedDict, cast

import httpx
'''
CLASS = f'''

class ApiError(Exception):
    """The API refused a request. status: of HTTP. detail: what was found and what was expected."""

    def __init__(self, status: int, detail: str) -> None:
        super().__init__(f"HTTP {{status}}: {{detail}}")
        self.status = status
        self.detail = detail


class ConsoleApi:
    """The questions of the API. Each raises ApiError, and httpx.HTTPError if the console does not answer."""

    def __init__(self, url: str, token: str = "", timeout_s: float = 60.0) -> None:
        """url: of the console, with /c/NAME for one of several clusters. token: an API token, if it has accounts."""
        headers = {{"authorization": f"Bearer {{token}}"}} if token else {{}}
        self._http = httpx.Client(base_url=url.rstrip("/") + "{API_PREFIX}", headers=headers, timeout=timeout_s)

    def __enter__(self) -> ConsoleApi:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._http.close()

    def _get(self, path: str, parameters: dict[str, object] | None = None) -> Any:
        asked = {{name: value for name, value in (parameters or {{}}).items() if value is not None}}
        answer = self._http.get(path, params=cast(Any, asked))
        if answer.status_code != 200:
            is_problem = answer.headers.get("content-type", "").startswith("application/problem+json")
            raise ApiError(answer.status_code, answer.json()["detail"] if is_problem else answer.text[:500])
        return answer.json()
'''


def client_of(description: dict[str, Any]) -> str:
    """Return the module for a description: a TypedDict for each schema, a method for each question with JSON."""
    schemas = description["components"]["schemas"]
    parts = [HEAD]
    parts += [_declared(name, schema) for name, schema in sorted(schemas.items())]
    parts.append(CLASS)
    for path, operations in description["paths"].items():
        content = operations.get("get", {}).get("responses", {}).get("200", {}).get("content", {})
        if "application/json" in content:
            answer = _type(content["application/json"]["schema"])
            parts.append(_method(path.removeprefix(API_PREFIX), operations["get"], answer))
    return "\n".join(parts)


def _declared(name: str, schema: dict[str, Any]) -> str:
    if "enum" in schema:
        return f"\n{name} = {_type(schema)}"
    words = f"    {_words(schema.get('description', name))}\n"
    fields = "".join(f"    {field}: {_type(one)}\n" for field, one in schema.get("properties", {}).items())
    return f"\n\nclass {name}(TypedDict):\n{words}\n{fields}"


def _method(path: str, operation: dict[str, Any], answer: str) -> str:
    name = re.sub(r"\W", "_", path.strip("/"))
    given, passed = [], []
    for one in operation.get("parameters", []):
        own = f"{one['name']}_" if keyword.iskeyword(one["name"]) else one["name"]
        default = "" if one["required"] else f" = {one['schema'].get('default')!r}"
        given.append(f"{own}: {_type(one['schema'])}{default}")
        passed.append(f'"{one["name"]}": {own}')
    star = ["*"] if given else []
    asked = f", {{{', '.join(passed)}}}" if passed else ""
    return (
        f"\n    def {name}(self, {', '.join([*star, *given])}) -> {answer}:\n"
        f"        {_words(operation['summary'])}\n"
        f'        return cast("{answer}", self._get("{path}"{asked}))\n'
    )


def _type(schema: dict[str, Any]) -> str:
    if "$ref" in schema:
        return str(schema["$ref"]).rpartition("/")[2]
    if "enum" in schema:
        return f"Literal[{', '.join(map(repr, schema['enum']))}]"
    if "const" in schema:
        return f"Literal[{schema['const']!r}]"
    if "anyOf" in schema:
        return " | ".join(dict.fromkeys(map(_type, schema["anyOf"])))
    match schema.get("type"):
        case "array":
            return f"list[{_type(schema.get('items', {}))}]"
        case "object":
            rest = schema.get("additionalProperties")
            return f"dict[str, {_type(rest) if isinstance(rest, dict) else 'Any'}]"
    names = {"string": "str", "integer": "int", "number": "float", "boolean": "bool", "null": "None"}
    return names.get(schema.get("type", ""), "Any")


def _words(text: str) -> str:
    first = " ".join(text.split("\n\n")[0].split()).rstrip(".")
    cut = first if len(first) <= 100 else f"{first[:100].rpartition(' ')[0]} …"
    return f'"""{cut}."""' if not cut.endswith("…") else f'"""{cut}"""'


def generated() -> str:
    """Return the module for the API of this version, not formatted."""
    return client_of(make_api(Sources.open(None, "127.0.0.1:1")).openapi())


def main() -> None:
    """Write the module, formatted."""
    TARGET.write_text(generated(), "utf-8")
    subprocess.run([sys.executable, "-m", "ruff", "format", "-q", str(TARGET)], check=True)


if __name__ == "__main__":
    main()
