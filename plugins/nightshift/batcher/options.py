"""The options of `nightshift batcher`. Imports nothing that takes long: the command line reads them first."""

from __future__ import annotations

from dataclasses import MISSING, dataclass
from typing import Any

from nightshift.fields.arguments import limit, names, option, port, positive, wait


def _valued(name: str, default: Any, kind: Any, metavar: str, meaning: str) -> Any:
    return option(name, default=default, type=kind, metavar=metavar, help=f"{meaning} (default: %(default)s)")


@dataclass(frozen=True)
class Options:
    upstream: str = option("--upstream", default=MISSING, metavar="URL", help="the server, without /v1")
    host: str = _valued("--host", "127.0.0.1", str, "HOST", "address to listen on")
    port: int = _valued("--port", 8081, port, "PORT", "port to listen on; 0 takes a free one")
    max_batch_size: int = _valued(
        "--max-batch-size", 32, positive, "N", "items in a request; a caller with more is sent in pieces"
    )
    max_upstream: int = _valued("--max-upstream", 8, positive, "N", "requests to the server at once")
    max_queue: int = _valued("--max-queue", 1024, positive, "N", "callers in hand; beyond it, 429")
    max_connections: int = _valued(
        "--max-connections", 2048, positive, "N", "connections from callers; beyond it, slow and idle ones give way"
    )
    max_body_mb: int = _valued("--max-body-mb", 8, positive, "MIB", "size of one request; beyond it, 413")
    max_memory_mb: int = _valued("--max-memory-mb", 512, positive, "MIB", "memory of all requests in hand; beyond it, 429")
    max_latency: float = _valued("--max-latency", 0.02, wait, "SECONDS", "how long a caller waits for others")
    timeout: float = _valued("--timeout", 600.0, limit, "SECONDS", "time limit of a request to the server")
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
    key: str | None = option(variable="NIGHTSHIFT_ENGINE_KEY")
