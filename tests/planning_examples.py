"""docs/examples/plans.txt, made by the planner itself.

PYTHONPATH=plugins .envs/test/bin/python -m tests.planning_examples --write
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from nightshift.planner.costs.prices import load_prices
from nightshift.planner.model import model_of
from nightshift.planner.plan import Refused, decide, fixed
from nightshift.planner.record import Record, Workload
from nightshift.planner.speed import Known, tokens_of
from nightshift.profiles.limits import Limits
from tests.builders import a_spec
from tests.unit import model_configs as configs

PAGE: Final = Path(__file__).parents[1] / "docs/examples/plans.txt"
BEGIN, END = "<!-- examples: begin -->\n", "<!-- examples: end -->\n"
CHAT: Final[dict[str, Any]] = {
    "task": "chat",
    "request": {"user": "{{ text }}", "max_tokens": 256},
    "engine__max_num_seqs": 256,
    "engine__max_model_len": 4096,
    "deadline": "3h",
}
VECTORS: Final[dict[str, Any]] = {
    "task": "embedding",
    "request": {"input": "{{ text }}", "dimensions": 384},
    "engine__max_num_seqs": 64,
    "engine__max_model_len": 256,
    "deadline": "1h",
}


@dataclass(frozen=True)
class Example:
    """config: of the model, and name what a reader calls it. input_tokens: of a sampled row. measured: (rows/s, start-up s) of
    a record."""

    title: str
    rows: int
    job: Mapping[str, Any]
    compute: Mapping[str, Any]
    name: str
    config: Mapping[str, Any]
    input_tokens: float | None = None
    measured: tuple[float, float] | None = None
    preemptions: int = 0
    limits: Limits = field(default_factory=Limits)


L4, H100, CPU = {"profile": "gpu-l4-spot"}, {"profile": "gpu-h100-spot"}, {"profile": "cpu"}
EXAMPLES: Final = (
    Example("A first night of vectors on CPUs", 50_000, VECTORS, CPU, "all-MiniLM-L6-v2", configs.MINILM, 40),
    Example("The same vectors on an L4", 10_000_000, VECTORS, L4, "all-MiniLM-L6-v2", configs.MINILM, 40),
    Example("A million chats on L4", 1_000_000, CHAT, L4, "Llama 3 8B", configs.LLAMA3_8B, 500),
    Example("The second night of it", 1_000_000, CHAT, L4, "Llama 3 8B", configs.LLAMA3_8B, 500, (3.1, 260.0), 2),
    Example(
        "The same, in a deployment with room for eight",
        1_000_000,
        CHAT,
        L4,
        "Llama 3 8B",
        configs.LLAMA3_8B,
        500,
        limits=Limits(8),
    ),
    Example("The same, with a quota of 40", 1_000_000, CHAT, L4, "Llama 3 8B", configs.LLAMA3_8B, 500, limits=Limits(quota=40)),
    Example("A model that the GPU does not hold", 20_000, CHAT, L4, "Llama 3 70B", configs.LLAMA3_70B, 500),
    Example("That model on four H100", 20_000, CHAT, {**H100, "tensor_parallel": 4}, "Llama 3 70B", configs.LLAMA3_70B, 500),
    Example("A mixture of experts", 200_000, CHAT, H100, "Qwen3 30B-A3B", configs.QWEN3_30B_A3B, 500),
    Example("Few rows", 300, CHAT, H100, "Qwen2.5 7B", configs.QWEN25_7B, 500),
    Example(
        "A speed that the job states, and that cannot be met",
        100_000,
        CHAT,
        {**L4, "rows_per_worker_per_second": 0.001},
        "Llama 3 8B",
        configs.LLAMA3_8B,
        500,
    ),
    Example(
        "Five minutes, of which start-up leaves one",
        1_000,
        {**CHAT, "deadline": "5m"},
        L4,
        "Llama 3 8B",
        configs.LLAMA3_8B,
        500,
        (3.1, 240.0),
    ),
)


def section(number: int, example: Example) -> str:
    """One example as Markdown."""
    spec = a_spec(**example.job, compute=dict(example.compute))
    records = {}
    if example.measured:
        rate, start_up_s = example.measured
        workload = Workload("hf://org/m", "r1", spec.task, "0", {}, "l4", 1)
        run, stages = "job/2026-11-19/0123456789abcdef", {"weights": start_up_s}
        sealed_at = "2026-11-20T04:00:00+00:00"
        records[spec.compute.profile] = Record(
            workload, run, sealed_at, round(rate * 36_000), 10, 36_000, 36_000, 10**7, 10**6, example.preemptions, stages
        )
    source = f"{example.input_tokens:g} input tokens per row, sampled" if example.input_tokens else ""
    known = Known(tokens_of(spec, example.input_tokens, source), model_of(example.config), "", records)
    asked = (
        f"{example.rows:,} rows, {spec.task} by {example.name}, deadline {spec.deadline}, max_num_seqs "
        f"{spec.engine.max_num_seqs}, compute {{{', '.join(f'{name}: {value}' for name, value in example.compute.items())}}}"
    )
    try:
        decision = decide(spec, example.rows, known, example.limits, load_prices().machines)
        workers, _, reasons = fixed(decision, spec, example.rows, 0)
        assert workers == decision.workers
        said = [f"- {reason}" for reason in reasons]
    except Refused as refused:
        said = ["Refused: " + "; ".join(refused.problems) + ".", "", *(f"- {way.sentence}" for way in refused.ways)]
    return "\n".join([f"### {number}. {example.title}", "", asked + ".", "", *said, ""])


def with_examples(page: str) -> str:
    """The page with the examples as they are now. Raises ValueError for a page without the two marks."""
    made = "\n".join(section(number, example) for number, example in enumerate(EXAMPLES, 1))
    found, times = re.subn(f"{BEGIN}.*?{END}", lambda _: f"{BEGIN}\n{made}\n{END}", page, flags=re.DOTALL)
    if times != 1:
        raise ValueError(f"{PAGE.name} does not have the marks of the examples once")
    return found


if __name__ == "__main__":
    page = with_examples(PAGE.read_text())
    if sys.argv[1:] == ["--write"]:
        PAGE.write_text(page)
    else:
        print(page)
