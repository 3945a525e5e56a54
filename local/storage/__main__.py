"""``python -m local.storage``: the command line, the server around the application, and its shutdown."""

from __future__ import annotations

import argparse
import signal
import sys
from pathlib import Path

import uvicorn

from local.data_file import DataDirError
from local.storage import identities
from local.storage.app import HEALTH_PATH, Application
from local.storage.store import open_state

KEEP_ALIVE_S = 600
SHUTDOWN_S = 2


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m local.storage", description="A Cloud Storage emulator over one folder.")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default: %(default)s)")
    parser.add_argument("--port", type=int, default=9023, help="port to listen on (default: %(default)s)")
    parser.add_argument("--data-dir", type=Path, required=True, help="folder for all state; made if missing")
    parser.add_argument(
        "--identities", type=Path, metavar="FILE", help="tokens and whom they stand for; without it everybody may do everything"
    )
    options = parser.parse_args(arguments)
    # Once it has stopped, uvicorn raises the signal again for the handler that it found: this one, which exits with success.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    signal.signal(signal.SIGINT, lambda *_: sys.exit(0))
    try:
        known = identities.read(options.identities)
        store = open_state(options.data_dir)
    except (DataDirError, identities.IdentitiesError) as error:
        print(error, file=sys.stderr)
        return 1
    url = f"http://{options.host}:{options.port}"
    print(f"Cloud Storage emulator: {url} (health: {url}{HEALTH_PATH}), data in {options.data_dir}", flush=True)
    config = uvicorn.Config(
        Application(store, identities.Identities(known, store.policies)),
        host=options.host,
        port=options.port,
        http="h11",
        loop="asyncio",
        lifespan="off",
        access_log=False,
        log_level="warning",
        # Clients pool connections. If one is closed just as it is reused, a request fails that may not be repeatable.
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=SHUTDOWN_S,
        backlog=1024,
    )
    uvicorn.Server(config).run()
    return 0


if __name__ == "__main__":
    sys.exit(main())
