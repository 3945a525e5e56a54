"""P21: rows per second with the engine's defaults of a job, compared with those of `vllm serve`, and with `vllm.LLM`."""

from __future__ import annotations

import os
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any, Final

from benchmarks.report import Report, say, spread
from benchmarks.runs import short_sentences
from benchmarks.vllm_throughput import WARM_UP, Case, InProcess, Served, cpu_s_of, in_process, rate, served
from local import hub
from local import models as local_models

TURNS: Final = 5
MAX_TOKENS: Final = 16
NO_PREFIXES: Final = {"enable-prefix-caching": False}
"""Turns repeat their rows: the second would find its long prompts in the cache."""
BEFORE_SEATS: Final = 128
BEFORE: Final[dict[str, Any]] = {"max-num-batched-tokens": 2048, "disable-uvicorn-access-log": False}
"""What `vllm serve` of vLLM 0.32 takes on a CPU (``EngineArgs.get_batch_defaults``)."""
METHOD: Final = f"""
The same rows go three ways: through the driver to a vLLM with the defaults of `vllm serve` (before: {BEFORE_SEATS} rows and
2,048 tokens a step, an access log), through the driver to one with a job's defaults on a CPU (after: 256 rows and 4,096 tokens
a step, no access log), and through `vllm.LLM` in process with its own defaults, which are the same numbers. One vLLM build,
model and dtype, float32 and eager. All three are up all the time, two of them idle, and take turns; before and after swap
places with each. Embeddings are MiniLM's, of rows with about 14 tokens; chats are the tests' tiny Llama's, greedy, at most
{MAX_TOKENS} tokens, without prefix caching, with prompts of about 30 and 200 tokens. The time through the driver is as in P1.
Medians of the turns are compared.
CPU seconds are those of driver and engine, and of the one process; beside other work they say more than rows/s.
"""


def long_texts(ordinals: range) -> list[str]:
    """No two begin alike."""
    return [f"{n}: " + f"package {n} reads settings files and checks each value. " * 9 for n in ordinals]


def cases() -> list[Case]:
    """With a job's defaults."""
    llama = local_models.ensure(local_models.TINY_LLAMA)
    chat = Case("", llama.repository, llama.revision, True, 0, None, chats=True, max_tokens=MAX_TOKENS, args=NO_PREFIXES)
    return [
        Case("short embeddings", hub.REPOSITORY, hub.REVISION, False, 4_000, None, None, short_sentences),
        replace(chat, name="chat, short prompts", rows=1_800, texts=short_sentences),
        replace(chat, name="chat, long prompts", rows=1_800, texts=long_texts),
    ]


def before(after: Case) -> Case:
    """The same as `vllm serve` would start."""
    return replace(after, max_num_seqs=BEFORE_SEATS, args={**after.args, **BEFORE})


def measure(report: Report, folder: Path, quick: bool) -> None:
    for case in [case for case in cases() if os.environ.get("P21", "") in case.name]:
        rows, turns = (200, 1) if quick else (case.rows, TURNS)
        place = folder / case.name.replace(" ", "-").replace(",", "")
        _compare(report, case, rows, turns, place)


def _compare(report: Report, after: Case, rows: int, turns: int, folder: Path) -> None:
    found: dict[str, list[dict[str, float]]] = {"before": [], "after": [], "in process": []}
    for name in found:
        (folder / name).mkdir(parents=True)
    with ExitStack() as stack:
        sides: dict[str, InProcess | Served] = {
            "before": stack.enter_context(served(before(after), folder / "before")),
            "after": stack.enter_context(served(after, folder / "after")),
            "in process": stack.enter_context(in_process(after, folder / "in process")),
        }
        for side in sides.values():
            side.compute(WARM_UP)
        for turn in range(turns):
            for name in ("before", "after", "in process") if turn % 2 else ("after", "before", "in process"):
                found[name].append(sides[name].compute(rows))
            say(f"{after.name}: {', '.join(f'{name} {rate(runs[-1], rows):.1f}' for name, runs in found.items())} rows/s")
    rates = {name: [rate(run, rows) for run in runs] for name, runs in found.items()}
    spent = {name: [1000 * cpu_s_of(run) / rows for run in runs] for name, runs in found.items()}
    ratio = median(rates["after"]) / median(rates["before"])
    report.add(f"{after.name}: rows/s, after / before", f"{ratio:.3f}", ">= 0.98", ratio >= 0.98)
    report.add(
        f"{after.name}: rows/s, after / in process", f"{median(rates['after']) / median(rates['in process']):.3f}", "stated"
    )
    cost = median(spent["after"]) / median(spent["before"])
    report.add(f"{after.name}: CPU seconds of all processes per row, after / before", f"{cost:.3f}", "stated")
    for name in found:
        cpu = f"CPU ms per row {spread(spent[name], '.2f')}"
        report.note(f"{rows:,} rows, {after.name}, {name}: {spread(rates[name], '.1f')} rows/s; {cpu}")
