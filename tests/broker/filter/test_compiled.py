"""Compiled subscriptions, and the positions in Apache's Bloom filter."""

import pytest

from mqtrail.broker.filter import TagFilter, compile_filter
from mqtrail.broker.filter.bloom import bloom_places, murmur64
from mqtrail.wire import SubscriptionData, SubscriptionParseFailed


def test_filters_of_subscriptions() -> None:
    """Tag filters read only the ConsumeQueue entry, SQL filters only the properties, and `*` reads neither."""
    assert compile_filter(SubscriptionData.build("t", "*")) is None
    tags = compile_filter(SubscriptionData.build("t", "A || B"))
    assert isinstance(tags, TagFilter)
    assert [tags.matches_code(code) for code in (65, 66, 67, 65 - (1 << 32))] == [True, True, False, True]
    assert tags.matches(b"")
    sql = compile_filter(SubscriptionData.build("t", "a = 1", "SQL92"))
    assert sql is not None
    assert sql.matches_code(7)
    assert sql.tags_codes is None
    assert [sql.matches(text) for text in (b"a\x011\x02", b"a\x012\x02")] == [True, False]
    for expression, kind in (("", "SQL92"), ("a = 1", "XPATH"), ("a =", "SQL92")):
        with pytest.raises(SubscriptionParseFailed):
            compile_filter(SubscriptionData.build("t", expression, kind))


def test_murmur_and_places() -> None:
    """Hashes equal the published values of MurmurHash3 x64 128; positions are below the number of bits."""
    assert murmur64(b"hello") == 0xCBD8A7B341BD9B02
    assert murmur64(b"The quick brown fox jumps over the lazy dog") == 0xE34BBC7BBC071B6C
    places = bloom_places("g", "t")
    assert (places.bit_num, len(places.bit_pos)) == (112, 3)
    assert all(0 <= place < 112 for place in places.bit_pos)
