"""Real vLLM on the CPU, as a measure uses it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from nightshift.spec import JobSpec
from tests.integration.driver.vllm import Vllm

ON_THE_CPU: Final[dict[str, Any]] = {
    "engine__max_model_len": 256,
    "engine__dtype": "float32",
    "engine__args": {"enforce-eager": True},
}
"""Changes to `tests.builders.a_spec`."""


@contextmanager
def running(spec: JobSpec, log: Path) -> Iterator[Vllm]:
    """A vLLM server that answers."""
    server = Vllm(spec, log)
    try:
        server.await_health()
        yield server
    finally:
        server.kill()


def one_thread() -> None:
    """Leaves a core to the model and the others to the rest: otherwise the measure is of threads that wait for a core."""
    os.environ["OMP_NUM_THREADS"] = "1"
