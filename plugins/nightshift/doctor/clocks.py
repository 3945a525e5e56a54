"""This machine's clock beside Google's and the Kubernetes API server's: the header ``Date`` of a reply (RFC 9110, 6.6.1).

It counts seconds, and the reply was on its way for a while; both are allowed for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from email.utils import parsedate_to_datetime
from typing import Final

from nightshift.doctor import bucket
from nightshift.doctor.context import Surroundings
from nightshift.doctor.findings import Failed, Finding, Ok, Skipped

GOOGLE: Final = "clock (Google)"
CLUSTER: Final = "clock (cluster)"
OFF_MAX_S: Final = 10.0
"""Seconds. Google refuses the signature of a token that is minutes off; deadlines and the order of runs of one partition go by
the clocks of Airflow's machines."""
BREAKS: Final = "deadlines, and which of two runs of a partition is the later one; if it is minutes off, every call to Google"


def google(here: Surroundings) -> Iterator[Finding]:
    yield _compared(here, GOOGLE, "Google's", lambda: bucket.metadata(here).headers.get("date", ""))


def cluster(here: Surroundings) -> Iterator[Finding]:
    api = here.connections.cluster()
    assert api is not None, "its check needs the check `cluster`"
    yield _compared(here, CLUSTER, "the API server's", api.date)


def _compared(here: Surroundings, check: str, whose: str, ask: Callable[[], str]) -> Finding:
    before = here.now()
    date = ask()
    after = here.now()
    if not date:
        return Skipped(check, "the reply has no header Date")
    try:
        theirs = parsedate_to_datetime(date).timestamp()
    except ValueError:
        return Skipped(check, f"the reply's header Date is not a date: {date!r}")
    # It was some time in [theirs, theirs + 1), and at some time between the two readings here.
    behind, ahead = theirs - after, before - (theirs + 1)
    off = max(behind, ahead, 0.0)
    if off <= OFF_MAX_S:
        return Ok(check, f"this machine's clock and {whose} agree to {OFF_MAX_S:g} s")
    which = "behind" if behind > ahead else "ahead of"
    wrong = f"this machine's clock is {off:.0f} s {which} {whose}"
    return Failed(check, wrong, BREAKS, "timedatectl set-ntp true (on the machine that is off)")
