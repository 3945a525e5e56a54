"""The options of `nightshift batcher`. Imports nothing that takes long: the command line reads them first."""

from __future__ import annotations

from dataclasses import MISSING, dataclass

from nightshift.fields.arguments import limit, names, option, port, positive, wait


@dataclass(frozen=True)
class Options:
    upstream: str = option("--upstream", default=MISSING, metavar="URL", help="the server, without /v1")
    host: str = option("--host", default="127.0.0.1", metavar="HOST", help="address to listen on (default: 127.0.0.1)")
    port: int = option(
        "--port", default=8081, type=port, metavar="PORT", help="port to listen on; 0 takes a free one (default: 8081)"
    )
    max_batch_size: int = option(
        "--max-batch-size",
        default=32,
        type=positive,
        metavar="N",
        help="items in a request; a caller with more is sent in pieces (default: 32)",
    )
    max_upstream: int = option(
        "--max-upstream", default=8, type=positive, metavar="N", help="requests to the server at once (default: 8)"
    )
    max_queue: int = option(
        "--max-queue", default=1024, type=positive, metavar="N", help="callers in hand; beyond it, 429 (default: 1024)"
    )
    max_connections: int = option(
        "--max-connections",
        default=2048,
        type=positive,
        metavar="N",
        help="connections from callers; beyond it, slow and idle ones give way (default: 2048)",
    )
    max_body_mb: int = option(
        "--max-body-mb", default=8, type=positive, metavar="MIB", help="size of one request; beyond it, 413 (default: 8)"
    )
    max_memory_mb: int = option(
        "--max-memory-mb",
        default=512,
        type=positive,
        metavar="MIB",
        help="memory of all requests in hand; beyond it, 429 (default: 512)",
    )
    max_latency: float = option(
        "--max-latency", default=0.02, type=wait, metavar="SECONDS", help="how long a caller waits for others (default: 0.02)"
    )
    timeout: float = option(
        "--timeout", default=600.0, type=limit, metavar="SECONDS", help="time limit of a request to the server (default: 600)"
    )
    endpoints: tuple[str, ...] = option(
        "--endpoints",
        default=(),
        type=names,
        metavar="NAMES",
        help="merge only these, for example embeddings,score (default: all)",
    )
    key_header: list[str] = option(
        "--key-header",
        default=[],
        action="append",
        metavar="NAME",
        help="merge only requests with the same value of this header",
    )
    ignore_header: list[str] = option(
        "--ignore-header",
        default=[],
        action="append",
        metavar="NAME",
        help="merge requests whatever their value of this header",
    )
    usage: str = option(
        "--usage",
        default="omit",
        choices=("omit", "estimate"),
        help="what callers of a merged request get as usage, of which the server reports only the sum (default: omit)",
    )
