"""How many dead letters a run may have: checked by workers during the run, and by the seal at its end."""

from __future__ import annotations

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


def what_to_do(tolerate: str) -> str:
    """Of a run with too many dead letters. tolerate: as the job has it."""
    return (
        f"(dead_letters.tolerate: {tolerate}). Nothing is published. Trigger the DAG with redo to compute only the rows "
        "without an answer: corrected, once you have mended the rows or the job; dead_letters, if the engine was ill. Or "
        "raise the tolerance and trigger the DAG again: what is computed stays."
    )
