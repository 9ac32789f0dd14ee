"""A FastAPI application that sends: one producer for the whole application, and errors as HTTP statuses.

    pip install mqtrail fastapi uvicorn
    NAMESRV=127.0.0.1:9876 uvicorn examples.fastapi_app:app

POST /orders answers 202 with the message id once a broker has stored the order. 503: it is certainly not stored, so
the caller may retry. 504: unknown; the caller looks up the order by its key before a retry, with GET /orders/{id}.
"""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI, HTTPException, Request

from mqtrail.client import Admin, Message, NoNameServer, Producer, RouteNotFound, SendFailed

NAMESRV = os.environ.get("NAMESRV", "127.0.0.1:9876")


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    """The clients live as long as the application, in its event loop. Each worker process has its own."""
    async with Producer("shop-api", NAMESRV, trace=True) as producer, Admin(NAMESRV) as admin:
        app.state.producer, app.state.admin = producer, admin
        yield


app = FastAPI(lifespan=lifespan)


@app.post("/orders", status_code=202)
async def place_order(request: Request) -> dict[str, Any]:
    """Store an order: JSON with an `id`."""
    order = await request.json()
    if not isinstance(order, dict) or not order.get("id"):
        raise HTTPException(422, "expected a JSON object with an id")
    producer: Producer = request.app.state.producer
    message = Message("orders", await request.body(), tags="placed", keys=str(order["id"]))
    try:
        sent = await producer.send(message, order_key=str(order["id"]))
    except SendFailed as error:
        raise HTTPException(504 if error.maybe_stored else 503, str(error)) from error
    except (NoNameServer, RouteNotFound) as error:
        raise HTTPException(503, str(error)) from error
    return {"message": sent.msg_id, "queue": sent.queue.queue_id, "offset": sent.queue_offset}


@app.get("/orders/{order_id}")
async def find_order(order_id: str, request: Request) -> dict[str, Any]:
    """Return whether an order is stored, by the brokers' index."""
    admin: Admin = request.app.state.admin
    try:
        found = await admin.query("orders", order_id)
    except RouteNotFound as error:
        raise HTTPException(404, str(error)) from error
    if found.failures:
        raise HTTPException(503, f"could not look everywhere: {sorted(found.failures)}")
    if not found.messages:
        raise HTTPException(404, f"no order {order_id}")
    return {"messages": [message.msg_id for message in found.messages]}
