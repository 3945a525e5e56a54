"""How many dead letters a run may have: checked by workers during the run, and by the seal at its end."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from nightshift.fields.text import n


class ToleranceExceeded(ValueError):
    """The run has more dead letters than its job tolerates. Nothing is sealed; more work cannot make it publishable."""


def judge(dead_letters: int, allowed: int, found: str, advice: str = "") -> None:
    """Raises ToleranceExceeded if `dead_letters` is more than `allowed` (`nightshift.spec.model.DeadLetters.allowed`).

    found: the dead letters in words; advice: what to do, in sentences.
    """
    if dead_letters > allowed:
        raise ToleranceExceeded(f"{found}; the job tolerates {allowed}{advice and f' {advice}'}")


def not_tried(rows: int) -> str:
    """Of rows that had no result when a night stopped because of its dead letters."""
    return f"{n(rows, 'row')} {'was' if rows == 1 else 'were'} not tried: there may be more"


def found(dead_letters: int, rows: int, reasons: Mapping[str, int], *, or_more: bool = False) -> str:
    """The dead letters of a run in words. or_more: whether there may be others among its committed rows."""
    listed = ", ".join(f"{count} {reason}" for reason, count in sorted(reasons.items(), key=lambda each: (-each[1], each[0])))
    return f"{dead_letters}{' or more' if or_more else ''} of {n(rows, 'row')} are dead letters{listed and f' ({listed})'}"


def what_to_do(tolerate: str, reasons: Mapping[str, int]) -> str:
    """Of a run with too many dead letters. tolerate: as the job has it. reasons: how many rows each cost, as far as known."""
    causes = " ".join(f"{reason}: {BY_REASON[reason]}." for reason in sorted(reasons, key=lambda each: -reasons[each])[:2])
    return (
        f"(dead_letters.tolerate: {tolerate}). Nothing is published. {causes}{causes and ' '}Trigger the DAG with redo to "
        "compute only the rows without an answer: corrected, once the rows or the job are right; dead_letters, if the "
        "engine was ill. Or raise the tolerance and trigger the DAG again: what is computed stays."
    )


BY_REASON: Final[Mapping[str, str]] = {
    "bad_input": "no request can be made of these rows, as of an empty text: correct them, or the template",
    "too_long": "let the query shorten the texts, raise engine.max_model_len, or write request.overlong: truncate (all task "
    "kinds but chat and completion)",
    "rejected": "correct what the engine's message, in the table of dead letters, says of the request",
    "invalid_output": "raise request.max_tokens, or ask for less: a smaller schema, a clearer prompt",
    "truncated": "raise request.max_tokens, or write request.truncated: keep",
    "engine_error": "read the engine's log: other rows were answered meanwhile",
    "engine_killed": "these rows end the engine: give it more memory, or lower engine.max_num_seqs",
    "timeout": "raise request.timeout, or lower request.max_tokens",
}
"""What to change, by the reason of a dead letter (`nightshift.tasks.base.Reason`)."""
