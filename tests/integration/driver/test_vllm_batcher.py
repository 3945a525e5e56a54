"""`nightshift batcher` in front of a real vLLM on the CPU."""

from __future__ import annotations

import asyncio
import json
import math
import urllib.error
from collections.abc import Iterator

import pytest

from tests.builders import a_spec
from tests.integration.driver.vllm import MINILM, Vllm
from tests.integration.stream.servers import BatcherProcess, Callers

pytestmark = pytest.mark.integration

TEXTS = [f"package number {n} does thing {n * 7 % 13}" for n in range(24)]
OVERLONG = "a sentence about trains. " * 200


@pytest.fixture(scope="module")
def vllm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Vllm]:
    server = Vllm(a_spec(**MINILM), tmp_path_factory.mktemp("vllm") / "vllm.log")
    server.await_health()
    yield server
    server.kill()


def cosine(one: list[float], other: list[float]) -> float:
    return sum(a * b for a, b in zip(one, other, strict=True)) / (math.hypot(*one) * math.hypot(*other))


async def test_callers_share_requests_and_an_overlong_text_costs_only_itself(vllm: Vllm) -> None:
    model = MINILM["model__name"]
    whole = await asyncio.to_thread(vllm.ask, "/v1/embeddings", {"model": model, "input": TEXTS})
    with pytest.raises(urllib.error.HTTPError) as refused:
        await asyncio.to_thread(vllm.ask, "/v1/embeddings", {"model": model, "input": OVERLONG})

    # 25 callers: the request is full with the last of them.
    with BatcherProcess(vllm.url, "--max-batch-size", len(TEXTS) + 1, "--max-latency", 60) as batcher:
        async with Callers(batcher) as callers:
            asked = [*TEXTS[:10], OVERLONG, *TEXTS[10:]]
            replies = await asyncio.gather(*(callers.ask("/v1/embeddings", {"model": model, "input": text}) for text in asked))
            models, metrics = await callers.session.get("/v1/models"), await callers.metrics()
            served = [each["id"] for each in (await models.json())["data"]]

    status, error = replies.pop(10)
    assert (status, served) == (refused.value.code, [model])
    assert error == json.load(refused.value), "the server's own words"
    assert [status for status, _ in replies] == [200] * len(TEXTS)
    for (_, body), expected in zip(replies, whole["data"], strict=True):
        (result,) = body["data"]
        assert result["index"] == 0
        assert cosine(result["embedding"], expected["embedding"]) > 0.9999
    assert len({body["id"] for _, body in replies}) == len(TEXTS)
    assert metrics["nightshift_batcher_batch_callers_count"] < len(TEXTS) / 2
    assert metrics['nightshift_batcher_refused_total{endpoint="embeddings"}'] >= 1
