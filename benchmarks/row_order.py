"""P19: rows planned in an order that serves vLLM's prefix cache, compared with the same rows shuffled."""

from __future__ import annotations

import os
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, Final

from benchmarks.engines import ON_THE_CPU, running
from benchmarks.processes import Driver, counter
from benchmarks.report import Report, say, spread
from benchmarks.runs import prepare
from local import models as local_models
from nightshift.planner.tokens import count
from tests.builders import a_spec
from tests.integration.driver.vllm import Vllm

WHOLE: Final = os.environ.get("P19") == "whole"
"""Half an hour more on two cores: 10,000 rows, once in each order."""
PREFIXES, SHARED_BY = (200, 50) if WHOLE else (40, 6)
PREFIX_TOKENS: Final = 512
OWN_TOKENS: Final = 512
SEATS: Final = 4
BLOCK: Final = 128
"""Tokens; vLLM's on the CPU."""
CACHED_PREFIXES: Final = PREFIXES // 10
BLOCKS: Final = SEATS * -(-(PREFIX_TOKENS + OWN_TOKENS + BLOCK) // BLOCK) + CACHED_PREFIXES * PREFIX_TOKENS // BLOCK
"""What `SEATS` whole prompts need, and a tenth of the prefixes."""
SEED: Final = 20261128
METHOD: Final = f"""
{PREFIXES} beginnings of {PREFIX_TOKENS} tokens, each shared by {SHARED_BY} rows with {OWN_TOKENS} tokens of their own, and as
many rows that share nothing. The same rows go through a driver to real vLLM with prefix caching and the tests' tiny Llama,
whose prefill takes nearly all of a row's time (one token is generated), in two orders: by text, as `source.order` plans them,
and shuffled. `num-gpu-blocks-override` lets the cache hold {SEATS} whole prompts (`max_num_seqs`) and {CACHED_PREFIXES}
beginnings more. The two take turns on one engine; medians are compared. The time is from "resumed" to the last commit, by the
driver's log. Hits are vLLM's own count of prompt tokens that it found in its cache.
"""


@dataclass(frozen=True)
class Timed:
    """rate: rows a second. hits: of the prompt tokens, the share that was in the cache."""

    rate: float
    hits: float


def measure(report: Report, folder: Path, quick: bool) -> None:
    llama = local_models.ensure(local_models.TINY_LLAMA)
    words = Words((llama.folder / "tokenizer.json").read_bytes())
    times, each = (1, 3) if quick else (1 if WHOLE else 3, SHARED_BY)
    settings: dict[str, Any] = {
        **ON_THE_CPU,
        "task": "completion",
        "request": {"prompt": "{{ text }}", "max_tokens": 1, "temperature": 0.0},
        "destination__column": "answer",
        "model__uri": llama.uri,
        "model__revision": llama.revision,
        "engine__max_num_seqs": SEATS,
        "engine__max_model_len": PREFIX_TOKENS + OWN_TOKENS + BLOCK,
        "engine__args": {"enforce-eager": True, "enable-prefix-caching": True, "num-gpu-blocks-override": BLOCKS},
    }
    beginnings = [words.text(PREFIX_TOKENS) for _ in range(PREFIXES)]
    shared = [f"{beginning} {words.text(OWN_TOKENS)}" for beginning in beginnings for _ in range(each)]
    alone = [words.text(PREFIX_TOKENS + OWN_TOKENS) for _ in shared]
    with running(a_spec(**settings), folder / "vllm.log") as server:
        cases = (("rows that share beginnings", shared, 1.3), ("rows that share nothing", alone, 0.98))
        for name, rows, goal in cases[:1] if WHOLE else cases:
            _compare(report, name, rows, goal, times, Ordered(server, folder / name.replace(" ", "-"), settings))


class Ordered:
    """Computes rows in some order, each time in a run of its own."""

    def __init__(self, server: Vllm, folder: Path, settings: dict[str, Any]) -> None:
        folder.mkdir()
        self._server, self._folder, self._settings = server, folder, settings
        self._runs = 0

    def compute(self, rows: Sequence[str]) -> Timed:
        self._runs += 1
        run = prepare(
            self._folder / f"run-{self._runs}",
            len(rows),
            chunk_rows=max(16, len(rows) // 10),
            texts=lambda ordinals: [rows[ordinal] for ordinal in ordinals],
            **self._settings,
        )
        queries, hits = self._cache()
        ended = Driver(run.url, self._server.url, self._folder / f"driver-{self._runs}.log").complete()
        run.check(ended.code)
        asked, found = self._cache()
        return Timed(len(rows) / ended.working_s, (found - hits) / max(1.0, asked - queries))

    def _cache(self) -> tuple[float, float]:
        """Prompt tokens that vLLM has looked up in its prefix cache, and those that it found."""
        names = ("vllm:prefix_cache_queries_total", "vllm:prefix_cache_hits_total")
        queries, hits = (counter(self._server.url, name) for name in names)
        return queries, hits


def _compare(report: Report, name: str, rows: list[str], goal: float, times: int, ordered: Ordered) -> None:
    shuffled = random.Random(SEED).sample(rows, len(rows))
    found: dict[str, list[Timed]] = {"in order": [], "shuffled": []}
    ordered.compute(shuffled[: 4 * SEATS])
    for _ in range(times):
        found["in order"].append(ordered.compute(sorted(rows)))
        found["shuffled"].append(ordered.compute(shuffled))
        say(f"{name}: {found['in order'][-1]} and {found['shuffled'][-1]}")
    rates = {words: [one.rate for one in runs] for words, runs in found.items()}
    ratio = median(rates["in order"]) / median(rates["shuffled"])
    report.add(f"rows/s in order / shuffled, {name}", f"{ratio:.2f}", f">= {goal}", ratio >= goal)
    for words, runs in found.items():
        hits = median([one.hits for one in runs])
        report.note(
            f"{len(rows)} {name}, {words}: {spread(rates[words], '.1f')} rows/s, {hits:.1%} of the prompt tokens in the cache"
        )


class Words:
    """Random words, and how many tokens each takes in a text."""

    def __init__(self, tokenizer: bytes) -> None:
        self._draw = random.Random(SEED)
        letters = "abcdefghijklmnopqrstuvwxyz"
        self._words = ["".join(self._draw.choices(letters, k=self._draw.randint(2, 7))) for _ in range(3000)]
        once, twice = (count([[" ".join([word] * times)] for word in self._words], tokenizer) for times in (1, 2))
        self._tokens = dict(zip(self._words, (b - a for a, b in zip(once, twice, strict=True)), strict=True))

    def text(self, tokens: int) -> str:
        """Of that many tokens, or a few more."""
        words: list[str] = []
        while tokens > 0:
            words.append(self._draw.choice(self._words))
            tokens -= int(self._tokens[words[-1]])
        return " ".join(words)
