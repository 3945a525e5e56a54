"""The real driver against a real vLLM on the CPU."""

import json
import math
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from local import hub
from local.environments import ROOT
from nightshift import exits
from nightshift.driver.health import ENGINE_BUDGET_S
from nightshift.jobset.manifest.weights import model_args
from tests.builders import a_spec
from tests.integration.driver.runs import DriverProcess, prepare
from tests.integration.driver.vllm import MINILM, Vllm, in_server_environment

pytestmark = [pytest.mark.integration, pytest.mark.gate]

ROWS = 360
"""Of the engine that is killed: far more than it computes before the kill."""
LONG = "a sentence about trains. " * 200
TEXTS: list[str | None] = [
    "an HTTP client for Python",
    "a parser for YAML files",
    None,
    "",
    LONG,
    "<h1>HTML</h1> &amp; <script>alert(1)</script>",
    "emoji 😀🚂 and \u202eright to left\u202c",
    "a NUL \x00 inside",
    *(f"package number {n} does thing {n * 7 % 13}" for n in range(56)),
]


@pytest.fixture(scope="module")
def vllm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Vllm]:
    server = Vllm(a_spec(**MINILM), tmp_path_factory.mktemp("vllm") / "vllm.log")
    server.await_health()
    yield server
    server.kill()


def cosine(one: list[float], other: list[float]) -> float:
    return sum(a * b for a, b in zip(one, other, strict=True)) / (math.hypot(*one) * math.hypot(*other))


def test_real_text_overlong_rows_kept_out(tmp_path: Path, vllm: Vllm) -> None:
    prepared = prepare(tmp_path, TEXTS, **MINILM)
    before = vllm.requests_served()

    # As a pod's driver is told: the engine says under /v1/models from where it has its model.
    code = DriverProcess(prepared, vllm.url, extra={"NIGHTSHIFT_MODEL_ROOT": model_args(prepared.spec)[0]}).finish()

    assert code == exits.DONE
    rows = prepared.rows()
    assert sorted(rows) == list(range(len(TEXTS)))
    assert {ordinal: row["dead_reason"] for ordinal, row in rows.items() if row["dead_reason"]} == {
        2: "bad_input",
        3: "bad_input",
        4: "too_long",
    }
    assert all(len(row["prediction"]) == 384 for row in rows.values() if row["prediction"])
    assert vllm.requests_served() - before == len(TEXTS) - 3, "each good row was computed once"


def test_real_text_overlong_rows_cut(tmp_path: Path, vllm: Vllm) -> None:
    prepared = prepare(tmp_path, TEXTS[4:6], **{**MINILM, "request__overlong": "truncate"})

    code = DriverProcess(prepared, vllm.url).finish()

    assert code == exits.DONE
    assert [row["dead_reason"] for row in prepared.rows().values()] == [None, None]


def test_a_search_speaks_the_same_language_as_the_engine(tmp_path: Path, vllm: Vllm) -> None:
    prepared = prepare(tmp_path, TEXTS[:2], **MINILM)
    DriverProcess(prepared, vllm.url).finish()
    script = ROOT / "local/demo/embed.py"
    vectors = in_server_environment(script, hub.REPOSITORY, hub.REVISION, stdin=json.dumps(TEXTS[:2]))

    for ordinal, vector in enumerate(vectors):
        assert cosine(vector, prepared.rows()[ordinal]["prediction"]) > 0.9999


def test_an_engine_killed_in_the_middle_costs_no_row(tmp_path: Path, vllm: Vllm) -> None:
    texts: list[str | None] = [f"{n} {LONG[:400]}" for n in range(ROWS)]
    prepared = prepare(tmp_path, texts, chunk_rows=8, **MINILM)
    driver = DriverProcess(prepared, vllm.url)
    driver.wait_for("committed")

    killed = time.monotonic()
    vllm.kill()
    vllm.start()
    code = driver.finish()
    if code == exits.RESUME:
        # A busy machine may take longer to start vLLM than a driver waits. Kubernetes would make the pod again.
        assert time.monotonic() - killed > ENGINE_BUDGET_S
        vllm.await_health()
        code = DriverProcess(prepared, vllm.url).finish()
    else:
        assert "engine back" in driver.messages()

    assert code == exits.DONE
    rows = prepared.rows()
    assert sorted(rows) == list(range(ROWS))
    assert all(row["dead_reason"] is None for row in rows.values())
    assert vllm.requests_served() <= ROWS - 8, "what was committed before the kill was not computed again"
