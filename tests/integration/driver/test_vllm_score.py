"""Scores and reranking through the real driver against a real vLLM, with a cross-encoder that was trained on this machine."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from local import models
from nightshift.spec import JobSpec
from tests.builders import a_spec
from tests.integration.driver.tables import broken_text, dead, run
from tests.integration.driver.vllm import Vllm, in_server_environment

pytestmark = pytest.mark.integration

REFERENCE = Path(__file__).with_name("reference.py")
QUERIES_TESTED = 40
CANDIDATES = 4


def a_job(task: str, **request: Any) -> JobSpec:
    model = models.ensure(models.DOCS_RANKER)
    return a_spec(
        task=task,
        request=request,
        model={"name": "ranker", "uri": model.uri, "revision": model.revision},
        engine={"max_num_seqs": 16, "dtype": "float32", "args": {"enforce-eager": True}},
    )


SCORE = {"text_1": "{{ name }}", "text_2": "{{ text }}"}
RERANK = {"query": "{{ name }}", "documents": "candidates"}


@pytest.fixture(scope="module")
def vllm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Vllm]:
    server = Vllm(a_job("score", **SCORE), tmp_path_factory.mktemp("vllm") / "vllm.log")
    server.await_health()
    yield server
    server.kill()


@pytest.fixture(scope="module")
def entries() -> list[tuple[str, str]]:
    """Names of functions, each with its own documentation; the model has seen none of them."""
    found = [(name, text) for _, name, text in in_server_environment(REFERENCE, "entries") if " " in name]
    return found[:: len(found) // QUERIES_TESTED]


def expected(pairs: list[tuple[str, str]]) -> list[float]:
    folder = str(models.ensure(models.DOCS_RANKER).folder)
    answer = in_server_environment(REFERENCE, "scores", folder, stdin=json.dumps(pairs))
    return [score for (score,) in answer["scores"]]


def test_scores_are_those_of_the_model_itself(tmp_path: Path, vllm: Vllm, entries: list[tuple[str, str]]) -> None:
    names, texts = [name for name, _ in entries], [text for _, text in entries]

    rows = run(tmp_path, vllm.url, a_job("score", **SCORE), {"name": names, "text": texts})

    assert dead(rows) == {}
    for ordinal, score in enumerate(expected(entries)):
        assert rows[ordinal]["prediction"] == pytest.approx(score, abs=1e-4)


def test_documents_keep_their_order_and_the_right_one_is_mostly_first(
    tmp_path: Path, vllm: Vllm, entries: list[tuple[str, str]]
) -> None:
    # Each query's own documentation stands at another place among those of the rows that follow it.
    candidates = [
        [entries[(n + step - n % CANDIDATES) % len(entries)][1] for step in range(CANDIDATES)] for n in range(len(entries))
    ]
    columns = {"name": [name for name, _ in entries], "candidates": pa.array(candidates, pa.list_(pa.string()))}

    rows = run(tmp_path, vllm.url, a_job("rerank", **RERANK), columns)

    assert dead(rows) == {}
    pairs = [(name, text) for (name, _), texts in zip(entries, candidates, strict=True) for text in texts]
    assert [score for n in range(len(entries)) for score in rows[n]["prediction"]] == pytest.approx(expected(pairs), abs=1e-4)
    best = [row["prediction"].index(max(row["prediction"])) for _, row in sorted(rows.items())]
    right = sum(place == n % CANDIDATES for n, place in enumerate(best))
    assert right > 2 * len(entries) / CANDIDATES, "it is far better than chance"


def test_hostile_pairs_cost_no_neighbour(tmp_path: Path, vllm: Vllm) -> None:
    good = b"Returns the shortest path."
    texts = [good, b"x " * 600, good, b"caf\xe9", good, b"", good, b"{{ name }} \x00", good]
    names = ["shortest path", "a", "shortest path", "b", "shortest path", "c", "shortest path", "d", "shortest path"]

    rows = run(tmp_path, vllm.url, a_job("score", **SCORE), {"name": names, "text": broken_text(texts)}, chunk_rows=9)

    assert dead(rows) == {1: "too_long", 3: "bad_input", 5: "bad_input"}
    assert [rows[n]["prediction"] for n in range(0, 9, 2)] == pytest.approx([rows[0]["prediction"]] * 5, abs=1e-4)


def test_rows_without_documents_are_dead_letters(tmp_path: Path, vllm: Vllm) -> None:
    candidates = pa.array([None, [], ["one"], ["x " * 600, "two"], ["", "three"]], pa.list_(pa.string()))

    rows = run(tmp_path, vllm.url, a_job("rerank", **RERANK), {"name": ["shortest path"] * 5, "candidates": candidates})

    assert dead(rows) == {0: "bad_input", 1: "bad_input", 3: "too_long"}
    assert [len(rows[n]["prediction"]) for n in (2, 4)] == [1, 2]
