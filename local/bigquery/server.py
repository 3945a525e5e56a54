"""Puts the corrections in place and serves. Call `sources.install` before importing this module."""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import signal
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NoReturn

import grpc
import local_bigquery
import uvicorn
from local_bigquery.engine import database
from local_bigquery.grpc import server as storage_api
from local_bigquery.settings import settings

from local.bigquery import (
    computed_once,
    exports,
    extensions,
    jobs,
    limits,
    loads,
    lookups,
    objects,
    partitions,
    row_counts,
    statements,
    table_locks,
    texts,
    transactions,
)

# In this order: some use what others have put in place.
CORRECTIONS = (
    extensions,
    lookups,
    objects,
    exports,
    loads,
    partitions,
    row_counts,
    transactions,
    jobs,
    limits,
    computed_once,
    statements,
    texts,
    table_locks,
)
# How long requests in progress may take to end after SIGTERM. Clients that wait for a job poll again anyway.
GRACE_S = 1
# Clients pool connections. If one is closed just as it is reused, a request fails that may not be repeatable.
KEEP_ALIVE_S = 600
# Each open stream of the Storage API holds a thread.
STORAGE_API_THREADS = 16


def serve(host: str, port: int, grpc_port: int, data_dir: Path) -> NoReturn:
    """Serves until SIGTERM or SIGINT, then ends the process with exit code 0; with 1 or 3 if it cannot start."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    # For each statement with parameters, DuckDB tries to import pandas: where it is missing, that is a search of every folder.
    sys.modules.setdefault("pandas", None)  # type: ignore[arg-type]
    for correction in CORRECTIONS:
        correction.install()
    # The lake stores its folder's name and refuses to be opened under another one.
    settings.data_dir = data_dir.resolve()
    settings.bigquery_host, settings.bigquery_port, settings.grpc_port = host, port, grpc_port
    _open_database()
    rest = local_bigquery.app
    # Before local-bigquery's routes, the last of which match nearly any path.
    rest.router.add_api_route("/healthz", _health, include_in_schema=False)
    rest.router.add_api_route("/limits/{dataset}", limits.lower, methods=["PUT"], include_in_schema=False)
    rest.middleware("http")(limits.refuse_large_requests)
    grpc_server = _storage_api(host, grpc_port)
    # uvicorn raises the signal again when it is done; it has been obeyed by then.
    for name in (signal.SIGTERM, signal.SIGINT):
        signal.signal(name, lambda *_: None)
    config = uvicorn.Config(
        rest,
        host=host,
        port=port,
        access_log=False,
        log_level="warning",
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=GRACE_S,
    )
    uvicorn.Server(config).run()
    grpc_server.stop(None)
    _end()


def _storage_api(host: str, port: int) -> grpc.Server:
    """The BigQuery Storage API. It runs as long as something refers to the result."""
    # gRPC would share a port with another emulator, and each would get some of the other's calls.
    server = grpc.server(ThreadPoolExecutor(STORAGE_API_THREADS), options=[("grpc.so_reuseport", 0)])
    server.add_generic_rpc_handlers(
        [grpc.method_handlers_generic_handler(name, methods) for name, methods in storage_api.SERVICES.items()]
    )
    try:
        server.add_insecure_port(f"{host}:{port}")
    except RuntimeError as error:
        sys.exit(f"cannot listen on {host}:{port}: {error}")
    server.start()
    return server


def _open_database() -> None:
    """Opens the data folder, before the first request would, and ends the jobs that the last process left."""
    try:
        database.connection()
    except Exception as error:
        sys.exit(f"cannot open {settings.data_dir}: {error}")
    with contextlib.suppress(FileNotFoundError):
        shutil.rmtree(settings.data_dir / "uploads")
    jobs.interrupted()


def _health() -> dict[str, str]:
    database.fetch("SELECT 1 FROM emulator.jobs LIMIT 1")
    return {"status": "ok"}


def _end() -> NoReturn:
    """Exits at once. Running jobs would delay a regular exit; for the data, this is no different from kill -9."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)
