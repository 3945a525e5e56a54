"""Classification through the real driver against a real vLLM, with a classifier that was trained on this machine and works."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from local import models
from nightshift.spec import JobSpec
from tests.builders import a_spec
from tests.integration.driver.tables import broken_text, dead, run
from tests.integration.driver.vllm import Vllm, in_server_environment

pytestmark = pytest.mark.integration

REFERENCE = Path(__file__).with_name("reference.py")
TEXTS_TESTED = 120


def a_job(**request: Any) -> JobSpec:
    model = models.ensure(models.DOCS_CLASSIFIER)
    return a_spec(
        task="classify",
        request={"input": "{{ text }}", **request},
        model={"name": "subjects", "uri": model.uri, "revision": model.revision},
        engine={"max_num_seqs": 16, "dtype": "float32", "args": {"enforce-eager": True}},
    )


@pytest.fixture(scope="module")
def vllm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Vllm]:
    server = Vllm(a_job(), tmp_path_factory.mktemp("vllm") / "vllm.log")
    server.await_health()
    yield server
    server.kill()


def test_labels_are_those_of_the_model_itself_and_mostly_right(tmp_path: Path, vllm: Vllm) -> None:
    entries = in_server_environment(REFERENCE, "entries")
    chosen = entries[:: len(entries) // TEXTS_TESTED]
    subjects, texts = [entry[0] for entry in chosen], [entry[2] for entry in chosen]
    folder = str(models.ensure(models.DOCS_CLASSIFIER).folder)
    expected = in_server_environment(REFERENCE, "scores", folder, stdin=json.dumps(texts))

    rows = run(tmp_path, vllm.url, a_job(), {"text": texts}, chunk_rows=32)

    assert dead(rows) == {}
    for ordinal, scores in enumerate(expected["scores"]):
        found = rows[ordinal]["prediction"]
        assert found["label"] == expected["labels"][scores.index(max(scores))]
        assert found["scores"] == pytest.approx(scores, abs=1e-4)
        assert found["score"] == max(found["scores"])
    right = sum(rows[ordinal]["prediction"]["label"] == subject for ordinal, subject in enumerate(subjects))
    assert right > 2 * max(Counter(subjects).values()), "it is far better than naming the commonest subject"


def test_hostile_texts_cost_no_neighbour_in_their_request(tmp_path: Path, vllm: Vllm) -> None:
    good = b"Returns the shortest path between two nodes of a graph."
    hostile = [
        b"x " * 600,
        b"\xed\xa0\x80",
        b"caf\xe9",
        b"",
        b"a NUL \x00 inside",
        b"{{ 7 * 7 }}",
        b"[" * 400,
        b"word " * 200_000,
    ]
    texts = [text for value in hostile for text in (good, value)] + [good]

    rows = run(tmp_path, vllm.url, a_job(), {"text": broken_text(texts)}, chunk_rows=len(texts))

    assert dead(rows) == {1: "too_long", 3: "bad_input", 5: "bad_input", 7: "bad_input", 15: "too_long"}
    assert {rows[ordinal]["prediction"]["label"] for ordinal in range(0, len(texts), 2)} == {"graphs"}


def test_overlong_texts_are_cut_where_the_job_says_so(tmp_path: Path, vllm: Vllm) -> None:
    rows = run(tmp_path, vllm.url, a_job(overlong="truncate"), {"text": ["shortest path " * 600, "shortest path " * 250]})

    assert dead(rows) == {}
    assert rows[0]["prediction"]["scores"] == pytest.approx(rows[1]["prediction"]["scores"], abs=0.02)
