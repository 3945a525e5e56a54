"""How many workers a run and how many rows a chunk may have, and how fast a worker may be."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from nightshift.tasks import TaskRequest

WORKERS_MAX: Final = 10_000
"""Of a run, as its job states or as they are planned."""
ENGINES_MAX: Final = 8
"""Of a worker. The cluster's rules name the ports of as many (k8s/)."""
SPEED_LEAST: Final = 1e-6
SPEED_MOST: Final = 1e6
"""Rows a second of one worker, as a job may state them and as a record may have measured them."""
CHUNK_ANSWER_BYTES_MAX: Final = 48 << 20
"""Of the answers of one chunk, as far as they can be foreseen. The driver's container has 2 GiB: a chunk that is encoded takes
about four times its answers, another one is filled meanwhile, and input, requests and Python need room, too. The seal reads
such a chunk in less than 300 MiB."""

COLUMN_BYTES_MAX: Final = 512 << 20
"""Of the texts of one column of a chunk, each repetition counted: with more it is not sealed."""


def chunk_rows_most(request: type[TaskRequest], values: Mapping[str, Any]) -> int:
    """The most rows of a chunk. values: those of the section ``request``."""
    return max(1, CHUNK_ANSWER_BYTES_MAX // request.answer_bytes(values))
