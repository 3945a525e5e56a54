"""`nightshift batch` beside `vllm run-batch`: the same file through the same model, line by line."""

from __future__ import annotations

import math
import os
import random
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from local import hub, vllm
from local.environments import ROOT, python_of
from nightshift.jobset.manifest.server import server_args
from nightshift.spec.engine_defaults import QUIET
from tests.builders import a_spec
from tests.integration.driver.batches import BatchProcess, read_lines, write_requests
from tests.integration.driver.vllm import Vllm

pytestmark = pytest.mark.integration

SPEC = a_spec(
    model__name="minilm",
    model__uri=f"hf://{hub.REPOSITORY}",
    model__revision=hub.REVISION,
    engine__max_num_seqs=16,
    engine__max_model_len=128,
    engine__dtype="float32",
    engine__args={"enforce-eager": True},
)


def an_embedding(name: str, given: Any, **body: Any) -> dict[str, Any]:
    asked = {"model": "minilm", "input": given, **body}
    return {"custom_id": name, "method": "POST", "url": "/v1/embeddings", "body": asked}


REQUESTS: list[dict[str, Any] | str] = [
    *(an_embedding(f"text-{n}", f"package number {n} does thing {n * 7 % 13}") for n in range(40)),
    "",
    an_embedding("list", ["one text", "another text"]),
    an_embedding("base64", "as base64", encoding_format="base64"),
    an_embedding("unicode", "emoji 😀🚂 and a NUL \x00 inside"),
    an_embedding("too long", "a sentence about trains. " * 200),
    an_embedding("wrong model", "text", model="nobody"),
    {"custom_id": "no model", "method": "POST", "url": "/v1/embeddings", "body": {"input": "text"}},
    {
        "custom_id": "score",
        "method": "POST",
        "url": "/score",
        "body": {"model": "minilm", "text_1": "a parser", "text_2": ["a parser of YAML", "a train"]},
    },
    {"custom_id": "wrong url", "method": "POST", "url": "/v1/nothing", "body": {"model": "minilm", "input": "text"}},
    an_embedding("text-0", "the same id again"),
]
FAIL = {"too long": 400, "wrong model": 404, "wrong url": 400}


def run_batch(source: Path, out: Path, log: Path) -> None:
    """vLLM's own command, with the arguments that its server gets: it has no HTTP server of its own."""
    of_http = ("--port=", f"--{QUIET}")
    model, *others = server_args(SPEC)
    arguments = [f"--model={model}", *(argument for argument in others if not argument.startswith(of_http))]
    environment = {**os.environ, **vllm.environment()}
    command = [str(python_of("server")), "-m", "vllm.entrypoints.openai.run_batch", "-i", str(source), "-o", str(out)]
    with open(log, "ab") as output:
        done = subprocess.run(
            [*command, *arguments], cwd=ROOT, env=environment, stdout=output, stderr=subprocess.STDOUT, check=False
        )
    assert done.returncode == 0, log.read_text()[-3000:]


def assert_alike(ours: Any, theirs: Any, where: str) -> None:
    """The same keys in the same order, the same values but for ids, times, numbers that differ by 1e-4, and words of errors."""
    assert type(ours) is type(theirs), where
    if isinstance(theirs, dict):
        assert list(ours) == list(theirs), where
        for key in theirs.keys() - {"id", "request_id", "created", "param"}:
            assert_alike(ours[key], theirs[key], f"{where}.{key}")
    elif isinstance(theirs, list):
        assert len(ours) == len(theirs), where
        for number, (one, other) in enumerate(zip(ours, theirs, strict=True)):
            assert_alike(one, other, f"{where}[{number}]")
    elif isinstance(theirs, float):
        assert math.isclose(ours, theirs, abs_tol=1e-4), where
    elif not where.endswith(".error"):
        assert ours == theirs, where


BAD: dict[str, dict[str, Any]] = {
    "too long": an_embedding("too long", "a sentence about trains. " * 200),
    "wrong model": an_embedding("wrong model", "text", model="nobody"),
    "wrong url": {"custom_id": "wrong url", "method": "POST", "url": "/v1/nothing", "body": {"model": "minilm", "input": "x"}},
    "dimensions": an_embedding("dimensions", "text", dimensions=7),
    "bytes": an_embedding("bytes", "text", encoding_format="bytes"),
    "empty list": an_embedding("empty list", []),
    "no token": an_embedding("no token", [10**9]),
}
"""Kinds of bad lines that vLLM's command takes: one that it cannot read would end it."""


def test_of_many_lines_the_same_are_answered_as_by_vllm_run_batch(tmp_path: Path) -> None:
    lines = [line for line in BAD.values() for _ in range(10)]
    lines += [an_embedding(f"good {n}", f"package number {n}") for n in range(10_000 - len(lines))]
    random.Random(43).shuffle(lines)
    source = write_requests(tmp_path / "in.jsonl", [dict(line) for line in lines])
    ours, theirs = tmp_path / "ours.jsonl", tmp_path / "theirs.jsonl"
    run_batch(source, theirs, tmp_path / "run_batch.log")
    server = Vllm(SPEC, tmp_path / "vllm.log")
    try:
        batch = BatchProcess("-i", source, "-o", ours, "--base-url", server.url, "--wait", 1200)
        assert batch.finish() == 0, batch.said
    finally:
        server.kill()

    print(batch.said)
    ends = {}
    for name, path in (("ours", ours), ("theirs", theirs)):
        ends[name] = Counter((line["custom_id"].partition(" ")[0], line["error"] is None) for line in read_lines(path))
    print(ends)
    assert ends["ours"] == ends["theirs"]
    assert ends["ours"]["good", True] == 10_000 - 10 * len(BAD)


def test_the_same_lines_as_vllm_run_batch(tmp_path: Path) -> None:
    source, ours, theirs = write_requests(tmp_path / "in.jsonl", REQUESTS), tmp_path / "ours.jsonl", tmp_path / "theirs.jsonl"
    run_batch(source, theirs, tmp_path / "run_batch.log")
    server = Vllm(SPEC, tmp_path / "vllm.log")
    try:
        # Started while the server is not there yet, as somebody would who starts both.
        batch = BatchProcess("-i", source, "-o", ours, "--base-url", server.url, "--wait", 1200)
        assert batch.finish() == 0, batch.said
    finally:
        server.kill()

    names = [request["custom_id"] for request in REQUESTS if isinstance(request, dict)]
    ours_lines, theirs_lines = read_lines(ours), read_lines(theirs)
    assert [line["custom_id"] for line in ours_lines] == [line["custom_id"] for line in theirs_lines] == names
    for one, other in zip(ours_lines, theirs_lines, strict=True):
        assert_alike(one, other, one["custom_id"])
    failed = {line["custom_id"]: line["response"]["status_code"] for line in ours_lines if line["error"] is not None}
    assert failed == FAIL
