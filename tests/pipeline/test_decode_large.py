"""Large trace records cost Spark as much as they are long, and no more."""

import pytest
from pyspark.sql import SparkSession

from mqtrail.pipeline.decode import EVENTS, HOLDS, decoded

from .test_decode import pulled

IDS = 120_000  # about 4 MiB with their offset ids; the square of it takes hours


@pytest.mark.timeout(280)
def test_a_batch_of_many_messages(spark: SparkSession) -> None:
    """The offset ids of a batch are split once for its record, not once for each of its messages."""
    ids = ",".join(f"ID{number}" for number in range(IDS))
    places = ",".join(f"AT{number}" for number in range(IDS))
    body = f"Pub\x011\x01R\x01shop\x01T\x01{ids}\x01A\x01k\x01h:1\x015\x017\x010\x01{places}\x01true\x02".encode()
    rows = decoded(pulled(spark, [body]), "c").filter(f"{HOLDS} = '{EVENTS}'")
    found = rows.selectExpr(
        "count(*)", "count_if(msg_id = concat('ID', item_no) AND offset_msg_id = concat('AT', item_no))"
    ).collect()
    assert [tuple(row) for row in found] == [(IDS, IDS)]
