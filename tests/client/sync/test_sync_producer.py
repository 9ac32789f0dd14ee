"""The synchronous producers: the same calls from plain code; a local transaction runs in the caller's own thread."""

import threading

import pytest

from mqtrail.client import (
    NoReply,
    Producer,
    ProducerConfig,
    SyncAdmin,
    SyncProducer,
    SyncTransaction,
    SyncTransactionProducer,
    TransactionState,
    by_hash,
)
from mqtrail.client.admin.admin import Admin
from mqtrail.wire import Message, MessageExt, RequestCode

from .test_sync import cluster_in_a_thread


def committed(message: MessageExt) -> TransactionState:
    """A check handler."""
    return TransactionState.COMMIT


def test_what_a_producer_can_its_facade_can() -> None:
    """send_all, selectors and requests take the arguments of the asynchronous classes."""
    with cluster_in_a_thread({"orders": 2}) as cluster, SyncProducer("PG", cluster.namesrv) as producer:
        outcomes = producer.send_all(Message("orders", b"%d" % number) for number in range(5))
        assert [outcome.stored for outcome in outcomes] == [True]
        assert len(producer.queues("orders")) == 2
        sent = producer.send(Message("orders", b"x"), select=by_hash("k"))
        assert sent.queue in producer.queues("orders")
        with pytest.raises(NoReply):
            producer.request(Message("orders", b"x"), 500)


def test_every_public_call_is_there() -> None:
    """The facades have every method of their asynchronous classes."""
    for facade, client in ((SyncProducer, Producer), (SyncAdmin, Admin)):
        names = {name for name in dir(client) if not name.startswith("_")} - {"start", "close", "client_id", "tracer"}
        assert names <= set(dir(facade)), names - set(dir(facade))
    assert SyncAdmin.topics.__doc__ == Admin.topics.__doc__


def test_transactions_from_plain_code() -> None:
    """Committed, rolled back and unknown transactions; the local transaction runs in the caller's thread."""
    with cluster_in_a_thread({"orders": 1}) as cluster:
        (broker,) = cluster.brokers
        threads = []

        def local(transaction: SyncTransaction) -> TransactionState:
            threads.append(threading.current_thread())
            return TransactionState.ROLLBACK

        def broken(transaction: SyncTransaction) -> TransactionState:
            raise KeyError(transaction.transaction_id)

        config = ProducerConfig()
        with SyncTransactionProducer("PG", cluster.namesrv, check=committed, config=config) as producer:
            result = producer.send_in_transaction(Message("orders", b"x"), local)
            assert result.state is TransactionState.ROLLBACK
            assert threads == [threading.current_thread()]
            result = producer.send_in_transaction(Message("orders", b"x"), broken)
            assert (result.state, type(result.error)) == (TransactionState.UNKNOWN, KeyError)
            with producer.transaction(Message("orders", b"x")) as transaction:
                assert transaction.state is None
            assert transaction.state is TransactionState.COMMIT
            with pytest.raises(ValueError, match="no"), producer.transaction(Message("orders", b"x")):
                raise ValueError("no")
            begun = producer.begin(Message("orders", b"x"))
            begun.rollback()
            assert begun.sent.msg_id == begun.transaction_id
            producer.send(Message("orders", b"plain"))  # behind them on the same connection
        codes = [end.ext["commitOrRollback"] for end in broker.of(RequestCode.END_TRANSACTION)]
        assert codes == ["12", "0", "8", "0", "12"]
