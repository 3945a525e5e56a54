"""The command `nightshift batcher`."""

from __future__ import annotations

import argparse
import sys
from typing import Final

from nightshift.cli import values
from nightshift.cli.values import Commands

BAD_INPUT: Final = 2


def add_to(commands: Commands) -> None:
    batcher = commands.add_parser(
        "batcher",
        help="merge the requests of waiting callers in front of a server (docs/batcher.md)",
        description="Collects single requests to endpoints that take lists (embeddings, completions, classify, pooling, score, "
        "KServe's predict and infer) into one, sends it when it is full or its first caller has waited long enough, and gives "
        "each caller its own answer or error. Passes everything else through. Needs nightshift[driver,stream].",
        epilog="Exit codes: 0 drained after a signal; 1 drained, but callers were cut off; 2 wrong command line.",
    )
    batcher.add_argument("--upstream", required=True, metavar="URL", help="the server, without /v1")
    batcher.add_argument("--host", default="127.0.0.1", help="address to listen on (default: 127.0.0.1)")
    batcher.add_argument("--port", type=values.port, default=8081, help="port to listen on; 0 takes a free one (default: 8081)")
    numbers = (
        ("--max-batch-size", 32, "N", "items in a request; a caller with more is sent in pieces (default: 32)"),
        ("--max-upstream", 8, "N", "requests to the server at once (default: 8)"),
        ("--max-queue", 1024, "N", "callers in hand; beyond it, 429 (default: 1024)"),
        ("--max-connections", 2048, "N", "connections from callers; beyond it, slow and idle ones give way (default: 2048)"),
        ("--max-body-mb", 8, "MIB", "size of one request; beyond it, 413 (default: 8)"),
        ("--max-memory-mb", 512, "MIB", "memory of all requests in hand; beyond it, 429 (default: 512)"),
    )
    for name, default, unit, text in numbers:
        batcher.add_argument(name, type=values.positive, default=default, metavar=unit, help=text)
    batcher.add_argument(
        "--max-latency",
        type=values.wait,
        default=0.02,
        metavar="SECONDS",
        help="how long a caller waits for others (default: 0.02)",
    )
    batcher.add_argument(
        "--timeout",
        type=values.limit,
        default=600.0,
        metavar="SECONDS",
        help="time limit of a request to the server (default: 600)",
    )
    batcher.add_argument(
        "--endpoints", type=values.names, metavar="NAMES", help="merge only these, for example embeddings,score (default: all)"
    )
    batcher.add_argument(
        "--key-header",
        action="append",
        default=[],
        metavar="NAME",
        help="merge only requests with the same value of this header",
    )
    batcher.add_argument(
        "--ignore-header",
        action="append",
        default=[],
        metavar="NAME",
        help="merge requests whatever their value of this header",
    )
    batcher.add_argument(
        "--usage",
        choices=("omit", "estimate"),
        default="omit",
        help="what callers of a merged request get as usage, of which the server reports only the sum (default: omit)",
    )
    batcher.set_defaults(command=_batcher)


def _batcher(options: argparse.Namespace) -> int:
    try:
        from nightshift.stream.batcher import server
        from nightshift.stream.batcher.app import Limits
        from nightshift.stream.batcher.routes import NAMES
    except ModuleNotFoundError as error:
        if str(error.name).partition(".")[0] == "nightshift":
            raise
        print(f"nightshift batcher needs the package {error.name}: install nightshift[driver,stream]", file=sys.stderr)
        return BAD_INPUT
    limits = Limits(
        batch_items=options.max_batch_size,
        latency_s=options.max_latency,
        upstream=options.max_upstream,
        queue=options.max_queue,
        connections=options.max_connections,
        body_bytes=options.max_body_mb << 20,
        memory_bytes=options.max_memory_mb << 20,
        timeout_s=options.timeout,
    )
    return server.run(
        server.Options(
            upstream=options.upstream,
            host=options.host,
            port=options.port,
            limits=limits,
            endpoints=options.endpoints or NAMES,
            key_headers=tuple(options.key_header),
            ignored_headers=tuple(options.ignore_header),
            estimate_usage=options.usage == "estimate",
        )
    )
