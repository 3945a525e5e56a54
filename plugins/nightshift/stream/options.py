"""The options of `nightshift stream`. Imports nothing that takes long: the command line reads them first."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from nightshift.fields.arguments import option, port

NO_SINK: Final = (
    "Set NIGHTSHIFT_SINK_URL to the address of the stream's database, for example "
    "postgresql://USER:PASSWORD@HOST/DATABASE (docs/use/streams.md)."
)
NO_ENGINE: Final = (
    "Set ENGINE_URL, or pass --engine-url: the address of the vLLM server that answers, for example http://127.0.0.1:8000 "
    "(docs/use/streams.md)."
)


@dataclass(frozen=True)
class Options:
    """project: of short names of subscription and topic. sink_url: of the database."""

    file: Path = option(type=Path, metavar="STREAM_FILE", help="a stream's YAML file")
    engine_url: str = option(
        "--engine-url", default="", variable="ENGINE_URL", metavar="URL", help="the server (default: the variable ENGINE_URL)"
    )
    sink_url: str = option(default="", variable="NIGHTSHIFT_SINK_URL")
    project: str | None = option(variable="NIGHTSHIFT_PROJECT")
    metrics_port: int | None = option(
        "--metrics-port", type=port, metavar="N", help="serve Prometheus metrics at this port; 0 takes a free one"
    )
    metrics_address: str = option(
        "--metrics-address",
        default="0.0.0.0",
        metavar="ADDRESS",
        help="the address that they are served on: 127.0.0.1, :: (default: %(default)s)",
    )
