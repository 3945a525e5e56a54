"""``python -m tests.chaos.stream_outage [--seconds N] [--messages N]``: no engine, and no database, for five minutes.

Two streams beside each other, each with the processes of `tests.chaos.stream_soak` and a full backlog: one loses its engine,
the other its database. The subscription's own dead-letter policy allows five attempts, the fewest that Pub/Sub knows. Proven
with the emulator's own counts: no message spends an attempt, consumption goes on by itself, every message has its outcome once.

No test runs it, because it takes as long as the outage. tests/integration/stream/test_subscriber.py has outages of 15 s.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import psycopg

from tests.chaos.stream_soak import PART, Broken, Soak
from tests.integration.pubsub import wait_until

ENGINE: Final = "engine"
DATABASE: Final = "database"
ATTEMPTS: Final = 5
LOOK_S: Final = 1.0
SETTLED_S: Final = 5.0
"""What was under way when the part went is over by then."""


@dataclass
class Report:
    """What was seen. backlog: messages without an outcome when the outage began; held: those that subscribers had, then and at
    least. attempts: of the message that was delivered most often. resumed_s: from the return to the first new outcome; done_s:
    to the last acknowledgement."""

    gone: str
    seconds: float
    messages: int = 0
    backlog: int = 0
    held: int = 0
    held_least: int = 0
    attempts: int = 0
    resumed_s: float = 0.0
    done_s: float = 0.0


def outage(folder: Path, gone: str, seconds: float, messages: int) -> Report:
    """One stream that loses a part. Raises Broken."""
    folder.mkdir(parents=True)
    run = Soak(folder, seed=0, attempts=ATTEMPTS)
    try:
        while len(run.texts) < messages:
            run.publish(min(PART, messages - len(run.texts)))
        run.subscribe()
        wait_until(lambda: _outcomes(run) > messages // 100, "the first messages have their outcomes")
        report = Report(gone, seconds, messages)
        back = _without(run, report)
        run.finish()
        report.done_s = round(time.monotonic() - back, 1)
        run.prove()
        report.attempts = max(run.pubsub.deliveries(run.subscription).values())
    finally:
        run.close()
    if report.attempts > 1:
        raise Broken(f"a message was delivered {report.attempts} times: {report}")
    return report


def _without(run: Soak, report: Report) -> float:
    """The outage itself, until something is answered again. Returns when the part was back (monotonic)."""
    lose, bring_back = {
        ENGINE: (run.kill_engine, run.revive_engine),
        DATABASE: (run.server.kill, run.server.start),
    }[report.gone]
    lose()
    until = time.monotonic() + report.seconds
    time.sleep(SETTLED_S)
    at_first = run.pubsub.statistics(run.subscription)
    report.backlog, report.held = at_first["num_undelivered_messages"], at_first["outstanding"]
    report.held_least = report.held
    while time.monotonic() < until:
        now = run.pubsub.statistics(run.subscription)
        report.held_least = min(report.held_least, now["outstanding"])
        if now["num_undelivered_messages"] < report.backlog:
            raise Broken(f"acknowledged without its {report.gone}: {now}")
        time.sleep(LOOK_S)
    bring_back()
    back = time.monotonic()
    before = _outcomes(run)
    wait_until(lambda: _outcomes(run) > before, "consumption goes on")
    report.resumed_s = round(time.monotonic() - back, 1)
    return back


def _outcomes(run: Soak) -> int:
    """Messages that have their outcome in the database; 0 before there are tables."""
    with psycopg.connect(run.server.url) as connection:
        found = connection.execute("SELECT to_regclass('answers_dead_letters')").fetchone()
        if found == (None,):
            return 0
        counted = connection.execute("SELECT (SELECT count(*) FROM answers) + (SELECT count(*) FROM answers_dead_letters)")
        ((count,),) = counted.fetchall()
        return int(count)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.stream_outage", description=__doc__)
    parser.add_argument("--seconds", type=float, default=300.0, help="of each outage (default: %(default)s)")
    parser.add_argument("--messages", type=int, default=10_000, help="of each stream (default: %(default)s)")
    options = parser.parse_args()
    code = 0
    with (
        tempfile.TemporaryDirectory(prefix="nightshift-stream-outage-", ignore_cleanup_errors=True) as folder,
        ThreadPoolExecutor(2) as both,
    ):
        running = [
            both.submit(outage, Path(folder) / gone, gone, options.seconds, options.messages) for gone in (ENGINE, DATABASE)
        ]
        for one in running:
            try:
                print(one.result(), flush=True)
            except AssertionError as error:
                print(f"BROKEN: {error}", flush=True)
                code = 1
    return code


if __name__ == "__main__":
    sys.exit(main())
