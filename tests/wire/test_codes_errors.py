"""Codes, versions, and refusals that survive the wire."""

import importlib
import pickle
import pkgutil

import pytest

from mqtrail import wire
from mqtrail.wire import (
    HeaderError,
    MQError,
    Refusal,
    ResponseCode,
    SystemError_,
    TopicNotExist,
    UnknownRefusal,
    refusal_for,
    version_of,
    version_text,
)


@pytest.mark.parametrize(
    ("version", "text"),
    [
        (479, "V5_3_3"),
        (478, "V5_3_3_SNAPSHOT"),
        (475, "V5_3_1"),
        (413, "V5_0_0"),
        (412, "V5_0_0_SNAPSHOT"),
        (411, "V4_9_9"),
        (409, "V4_9_8"),
        (317, "V4_5_2"),
        (213, "V4_0_0"),
        (121, "OLDER_VERSION(121)"),
        (611, "V5_9_9"),
        (612, "HIGHER_VERSION"),
    ],
)
def test_version_names(version: int, text: str) -> None:
    """The landmarks of the reference; each release has its snapshot just below."""
    assert version_text(version) == text


def test_version_numbers() -> None:
    assert version_of(5, 3, 3) == wire.MQ_VERSION
    with pytest.raises(ValueError, match=r"6\.0\.0"):
        version_of(6, 0, 0)


@pytest.mark.parametrize("code", list(ResponseCode))
def test_every_code_becomes_a_refusal_and_back(code: ResponseCode) -> None:
    """A reply's code and remark come back as the class that caused them, with both."""
    refusal = refusal_for(code, "why")
    assert refusal.response_code == code
    assert refusal.remark == "why"
    assert "why" in str(refusal)
    assert type(refusal) is UnknownRefusal or type(refusal).code == code


def test_refusals_with_unknown_codes() -> None:
    refusal = refusal_for(4711, None)
    assert type(refusal) is UnknownRefusal
    assert (refusal.response_code, refusal.remark, str(refusal)) == (4711, "", "code (4711)")


def test_code_1_is_the_peers_failure_not_our_header() -> None:
    """HeaderError answers code 1 as well, but a peer's code 1 may mean anything."""
    assert type(refusal_for(1, "x")) is SystemError_
    assert HeaderError("x").response_code == 1
    assert (SystemError_.retryable, HeaderError.retryable) == (True, False)


def test_a_refusal_raised_is_caught_as_what_it_is() -> None:
    with pytest.raises(TopicNotExist) as caught:
        raise refusal_for(17, "no topic T")
    assert isinstance(caught.value, Refusal)
    assert isinstance(caught.value, MQError)
    assert caught.value.retryable
    assert str(caught.value) == "TOPIC_NOT_EXIST (17): no topic T"


@pytest.mark.parametrize("refusal", [TopicNotExist("no T"), UnknownRefusal("?", 4711), HeaderError("no queueId")])
def test_refusals_cross_process_borders(refusal: Refusal) -> None:
    """Spark's workers pickle what they raise."""
    again = pickle.loads(pickle.dumps(refusal))
    assert (type(again), again.remark, again.response_code) == (type(refusal), refusal.remark, refusal.response_code)


def test_each_module_offers_its_names_once() -> None:
    """The facade gives what the modules list in __all__; two modules that list one name would hide one of them."""
    offered: dict[str, str] = {}
    for module in pkgutil.iter_modules(wire.__path__):
        loaded = importlib.import_module(f"mqtrail.wire.{module.name}")
        for name in getattr(loaded, "__all__", ()):
            assert name not in offered, (name, module.name, offered[name])
            offered[name] = module.name
            assert getattr(wire, name) is getattr(loaded, name)
    assert len(offered) > 400
