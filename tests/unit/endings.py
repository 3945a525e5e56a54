"""An outcome in short: its ending, and whether another JobSet can end otherwise."""

from nightshift.jobset.verdict.outcome import Ending, Outcome

RUNNING, STARTUP = (Ending.RUNNING, False), (Ending.STARTUP, True)
PREEMPTED, LOST = (Ending.PREEMPTED, True), (Ending.LOST, True)
APPLICATION, RESUMABLE = (Ending.APPLICATION, False), (Ending.APPLICATION, True)


def ending(outcome: Outcome) -> tuple[Ending, bool]:
    return outcome.ending, outcome.worth_retrying
