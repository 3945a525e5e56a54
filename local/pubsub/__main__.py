"""``python -m local.pubsub``: the command line, the two servers, and their shutdown."""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys
from pathlib import Path

import grpc
import uvicorn

from local.data_file import DataDirError
from local.pubsub.broker import Broker
from local.pubsub.clock import Clock
from local.pubsub.control import HEALTH_PATH, application
from local.pubsub.database import Database
from local.pubsub.faults import Faults
from local.pubsub.replies import Replies
from local.pubsub.service import Missing, Services
from local.pubsub.state import State

TICK_S = 0.1
SHUTDOWN_S = 0.5
RECEIVE_BYTES = 32 << 20
"""More than a request may have, so that one that is too large gets Pub/Sub's answer and not gRPC's."""


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m local.pubsub", description="A Pub/Sub emulator over one folder.")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default: %(default)s)")
    parser.add_argument("--port", type=int, default=8085, help="port of the gRPC API (default: %(default)s)")
    parser.add_argument("--control-port", type=int, default=8086, help="port for faults and statistics (default: %(default)s)")
    parser.add_argument("--data-dir", type=Path, required=True, help="folder for all state; made if missing")
    options = parser.parse_args(arguments)
    # uvicorn handles these itself, and raises them again at its end for the handlers that it found.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: None)
    try:
        state = State(Database(options.data_dir), Clock())
    except DataDirError as error:
        print(error, file=sys.stderr)
        return 1
    return asyncio.run(_serve(state, options.host, options.port, options.control_port))


async def _serve(state: State, host: str, port: int, control_port: int) -> int:
    broker, faults, replies = Broker(state), Faults(), Replies()
    server = _grpc_server(Services(broker, faults, replies))
    try:
        server.add_insecure_port(f"{host}:{port}")
    except RuntimeError as error:
        print(f"cannot listen at {host}:{port}: {error}", file=sys.stderr)
        return 1
    await server.start()
    control = f"http://{host}:{control_port}"
    print(f"Pub/Sub emulator: {host}:{port}, control: {control} (health: {control}{HEALTH_PATH})", flush=True)
    config = uvicorn.Config(
        application(broker, faults, replies),
        host=host,
        port=control_port,
        lifespan="off",
        access_log=False,
        log_level="warning",
    )
    front = uvicorn.Server(config)
    ticking = asyncio.ensure_future(_tick(broker, front))
    try:
        await front.serve()
    finally:
        ticking.cancel()
        (end,) = await asyncio.gather(ticking, return_exceptions=True)
        await server.stop(SHUTDOWN_S)
    if isinstance(end, Exception):
        raise end
    return 0


def _grpc_server(services: Services) -> grpc.aio.Server:
    handlers: dict[str, dict[str, grpc.RpcMethodHandler]] = {}
    for (service, method), each in services.handlers().items():
        handlers.setdefault(service, {})[method] = each
    server = grpc.aio.server(
        options=[
            ("grpc.max_receive_message_length", RECEIVE_BYTES),
            ("grpc.max_send_message_length", -1),
            # Otherwise a second process could listen at the same port and get some of the requests.
            ("grpc.so_reuseport", 0),
        ]
    )
    found = [grpc.method_handlers_generic_handler(service, methods) for service, methods in handlers.items()]
    server.add_generic_rpc_handlers((*found, Missing()))
    return server


async def _tick(broker: Broker, front: uvicorn.Server) -> None:
    """Ends the emulator if it fails: without it no deadline would ever be over."""
    try:
        while True:
            await asyncio.sleep(TICK_S)
            broker.tick()
    finally:
        front.should_exit = True


if __name__ == "__main__":
    sys.exit(main())
