"""An outcome in short: its ending, and whether the task that fails for it is worth another attempt."""

from airflow.sdk.exceptions import AirflowFailException

from nightshift.jobset.fleet.errors import failure_of
from nightshift.jobset.verdict.outcome import Ending, Outcome
from nightshift.operators.jobset_errors import raised_for

RUNNING, STARTUP = (Ending.RUNNING, False), (Ending.STARTUP, True)
PREEMPTED, LOST = (Ending.PREEMPTED, True), (Ending.LOST, True)
APPLICATION, RESUMABLE = (Ending.APPLICATION, False), (Ending.APPLICATION, True)


def ending(outcome: Outcome) -> tuple[Ending, bool]:
    """Of one that does not fail its task, no other attempt follows."""
    return outcome.ending, outcome.ending not in (Ending.RUNNING, Ending.SUCCEEDED) and is_retried(outcome)


def is_retried(outcome: Outcome) -> bool:
    return not isinstance(raised_for(failure_of("night", outcome)), AirflowFailException)
