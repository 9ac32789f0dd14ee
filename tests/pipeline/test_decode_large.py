"""Decoding a large trace record takes time in proportion to its length."""

import pytest
from pyspark.sql import SparkSession

from .test_decode import assert_equal

IDS = 30_000  # in time that grows with the square of it: half an hour


@pytest.mark.timeout(280)
def test_a_batch_of_many_messages(spark: SparkSession) -> None:
    """The offset ids of a batch are split once per record, not once per message."""
    ids = ",".join(f"ID{number}" for number in range(IDS))
    places = ",".join(f"AT{number}" for number in range(IDS))
    body = f"Pub\x011\x01R\x01shop\x01T\x01{ids}\x01A\x01k\x01h:1\x015\x017\x010\x01{places}\x01true\x02".encode()
    assert_equal(spark, [body])
