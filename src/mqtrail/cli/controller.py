"""`mqtrail controller`: runs one controller until a signal."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from .config import Layer, load
from .imports import collector_paused
from .options import ConfigFile, Json
from .output import say, show_json, warn

if TYPE_CHECKING:
    from mqtrail.node import ControllerNode

ConfFile = Annotated[
    Path | None,
    typer.Option("--conf", readable=False, help="RocketMQ controller.conf to read; keys without effect are reported."),
]
DataFolder = Annotated[
    Path | None,
    typer.Option(help="Folder for the controller's log. [env: MQTRAIL_DATA, default: ./mqtrail-data]"),
]
ListenHost = Annotated[
    str | None, typer.Option(help="IP address to listen on. [default: the host of this controller in --peers]")
]
Peers = Annotated[
    str | None,
    typer.Option(
        metavar="ID-HOST:PORT[;…]",
        help="All controllers of the group, the same list at each: 1, 3 or 5. [default: n0-127.0.0.1:9878]",
    ),
]
SelfId = Annotated[str | None, typer.Option(help="Id of this controller in --peers. [default: n0]")]
Group = Annotated[str | None, typer.Option(help="Name of the group of controllers. [default: controllers]")]


def controller(
    data: DataFolder = None,
    peers: Peers = None,
    self_id: SelfId = None,
    group: Group = None,
    host: ListenHost = None,
    conf: ConfFile = None,
    config: ConfigFile = None,
    json: Json = False,
) -> int:
    """Run a controller until SIGINT or SIGTERM: it elects the masters of broker groups."""
    with collector_paused():
        from mqtrail.node import ControllerNode, run_controller
    settings = load(config)
    flags = {"peers": peers, "self_id": self_id, "group": group}
    given = Layer("flag", {name: value for name, value in flags.items() if value is not None})
    found = settings.room("controller", *_conf_layers(conf, "controller"), given)
    server = replace(
        settings.room("server", *_conf_layers(conf, "server", quiet=True)),
        tls=settings.tls("server", *_conf_layers(conf, "tls_server", quiet=True)),
    )
    folder = settings.data(data)

    def make() -> ControllerNode:
        return ControllerNode(found, folder, host, server, settings.tls("client"))

    def ready(node: ControllerNode) -> None:
        if json:
            where = {"controller": node.address, "id": found.self_id, "data": str(folder.absolute())}
            show_json({"event": "ready", **where})
        else:
            say("mqtrail controller is ready; press Ctrl-C to stop")
            say(f"  controller   {node.address}  {found.self_id} of {found.group}")
            say(f"  peers        {found.peers}")
            say(f"  data         {folder}")
        if node.is_open_to_others:
            warn(
                f"{node.host} accepts connections from other machines, and this controller does not authenticate them: "
                "set inner_credentials in [controller], or let only brokers, controllers and operators reach this port "
                "(docs/how-to/controller.md)"
            )

    return run_controller(make, on_ready=ready)


def _conf_layers(conf: Path | None, table: str, *, quiet: bool = False) -> list[Layer]:
    if conf is None:
        return []
    from .broker_conf import CONTROLLER_TABLES, read_broker_conf

    found = read_broker_conf(conf, CONTROLLER_TABLES)
    if not quiet:
        for note in found.notes:
            warn(f"{conf}: {note}")
    return [Layer(str(conf), found.values[table])]
