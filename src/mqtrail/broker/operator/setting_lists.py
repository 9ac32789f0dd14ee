"""Requests with a list of topics or groups to create or change: 18 and 225."""

from collections.abc import Callable, Generator, Sequence
from typing import TypeVar

from ..bounds import CONFIG_LIST_MAX, check_count
from ..jobs import BODY_SIZE_A_SLICE, CHANGES_A_SLICE

Config = TypeVar("Config")


def change_each(
    what: str, body: bytes, decode: Callable[[bytes], Sequence[Config]], change: Callable[[Config], None]
) -> Generator[None, None, None]:
    """Call `change` with each element of the body, in order, yielding between slices; stop at the first invalid one.

    what: name of the elements for an error. BodyError, InvalidParameter: too many, or as `change` raises.
    """
    if len(body) > BODY_SIZE_A_SLICE:
        yield
    configs = decode(body)
    check_count(what, configs, CONFIG_LIST_MAX)
    if len(configs) > CHANGES_A_SLICE:
        yield
    for number, config in enumerate(configs, 1):
        change(config)
        if number % CHANGES_A_SLICE == 0:
            yield
