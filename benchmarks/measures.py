"""The measures: the number by which pages cite a claim, and the module that measures it.

A module has `METHOD`, the words that the page shows, and `measure(report, folder, quick)`.
"""

from __future__ import annotations

from typing import Final

MEASURES: Final = {
    "P1": "vllm_throughput",
    "P2": "http_cpu",
    "P3": "kill_waste",
    "P4": "checkpoint_cost",
    "P5": "sliding_window",
    "P6": "driver_memory",
    "P6b": "billion_rows",
    "P7": "night_makespan",
    "P8": "batch_command",
    "P9": "waiting_jobsets",
    "P10": "write_once_worker",
    "P11": "shared_machine",
    "P12": "warehouse_tasks",
    "P13": "stream_command",
    "P14": "batcher_command",
    "P15": "plan_accuracy",
    "P16": "deadlines_kept",
    "P17": "dag_parsing",
    "P18": "empty_night",
    "P19": "row_order",
    "P20": "api_servers",
    "P21": "engine_defaults",
}


def number_of(word: str) -> str | None:
    """The number of a measure. word: the number in upper or lower case, or the subject; None if there is no such measure."""
    return next((number for number, subject in MEASURES.items() if word == subject or word.lower() == number.lower()), None)
