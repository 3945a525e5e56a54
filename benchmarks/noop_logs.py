"""A kubelet's logs for simulated pods: every container writes a line each minute.

python -m benchmarks.noop_logs --port PORT --certificate FILE --key FILE
"""

from __future__ import annotations

import argparse
import asyncio
import ssl
from datetime import UTC, datetime
from typing import Final

import uvloop
from aiohttp import web

EVERY_S: Final = 60.0


async def follow(request: web.Request) -> web.StreamResponse:
    """From now on: there are no earlier lines."""
    response = web.StreamResponse()
    response.content_type = "text/plain"
    await response.prepare(request)
    while True:
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%f000Z")
        await response.write(f"{now} 1,024 rows, 17.1 rows/s, 64 in flight\n".encode())
        if request.query.get("follow") != "true":
            return response
        await asyncio.sleep(EVERY_S)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--certificate", required=True)
    parser.add_argument("--key", required=True)
    options = parser.parse_args()
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(options.certificate, options.key)
    app = web.Application()
    app.router.add_get("/containerLogs/{namespace}/{pod}/{container}", follow)
    # Many connections: asyncio's own loop keeps 256 KiB for each with TLS.
    loop = uvloop.new_event_loop()
    web.run_app(app, host="127.0.0.1", port=options.port, ssl_context=tls, backlog=4096, loop=loop, print=None)


if __name__ == "__main__":
    main()
