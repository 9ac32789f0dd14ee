"""No secret is in a repr, so no log line or traceback shows it."""

import dataclasses
import importlib
import inspect
import re

import msgspec
import pytest

from mqtrail.cli.config import ROOMS

SECRET = re.compile(r"secret|password|token|^init_user$|^inner_credentials$")
ROOM_NAMES = sorted({"mqtrail.wire", "mqtrail.client", "mqtrail.broker", *(module for module, _ in ROOMS.values())})


def secret_fields() -> list[tuple[type, str]]:
    found: dict[tuple[type, str], None] = {}
    for name in ROOM_NAMES:
        for cls in vars(importlib.import_module(name)).values():
            if not inspect.isclass(cls):
                continue
            if dataclasses.is_dataclass(cls):
                names = [field.name for field in dataclasses.fields(cls) if field.type is not bool]  # a flag is none
            elif issubclass(cls, msgspec.Struct):
                names = list(cls.__struct_fields__)
            else:
                continue
            found |= {(cls, field): None for field in names if SECRET.search(field)}
    return list(found)


@pytest.mark.parametrize(("cls", "field"), secret_fields())
def test_a_secret_field_is_in_no_repr(cls: type, field: str) -> None:
    """This holds for every class, also for classes added later."""
    if dataclasses.is_dataclass(cls):
        assert not next(one for one in dataclasses.fields(cls) if one.name == field).repr
    else:
        named = {one.name: one for one in msgspec.structs.fields(cls)}
        needed = {one.encode_name: "text" for one in named.values() if one.required}
        shown = repr(msgspec.convert(needed | {named[field].encode_name: "sesame"}, cls))
        assert cls.__name__ in shown
        assert "sesame" not in shown
