"""The command `nightshift runs`: the runs of a bucket, those that need somebody first."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from nightshift import exits
from nightshift.cli import trouble, unopened
from nightshift.cli.target import bucket_url
from nightshift.cli.terminal import OF_STATES, paint
from nightshift.fields.arguments import day, flag, option
from nightshift.fields.text import n
from nightshift.store import StoreUnavailable

if TYPE_CHECKING:
    from nightshift.status.runs import RunPage
    from nightshift.status.summary import Summary
    from nightshift.status.unopened import Unopened

DESCRIPTION: Final = (
    "Lists runs, those that need attention first, then those that are at work: state, rows, dead letters, when each was "
    "opened. It reads the bucket; and asks Airflow, if it is known, for nights that failed before they had a run. "
    "`nightshift status` shows one of them by its name."
)
EPILOG: Final = "Exit codes: 0; 2 bad input; 75 the store does not answer; 78 it refuses, or there are no credentials."
HEAD: Final = ("job", "day", "run", "state", "rows", "dead", "started")
_LEFT: Final = (True, True, True, True, False, False, True)


@dataclass(frozen=True)
class Options:
    bucket: str | None = option(
        nargs="?", metavar="BUCKET", help="gs://BUCKET (default: the bucket that NIGHTSHIFT_BUCKET names)"
    )
    job: str | None = option("--job", metavar="J", help="only runs of this job")
    since: str | None = option(
        "--since", type=day, metavar="DATE", help="all runs of partitions from this day on (default: the newest 50 runs)"
    )
    as_json: bool = flag("--json", "one JSON object")


def run(options: Options) -> int:
    """Prints them."""
    try:
        page = _listed(options)
    except (LookupError, ValueError, trouble.NoAccount, StoreUnavailable) as error:
        if isinstance(error, ValueError) and options.job and (words := unopened.words_of(options.job, os.environ)):
            print(words, file=sys.stderr)
        return trouble.tell("runs", error)
    without = [each for each in unopened.all_of(os.environ) if options.job in (None, each.job)]
    if options.as_json:
        said = {"runs": [each.to_json() for each in page.by_attention], "more": page.after is not None}
        print(json.dumps({**said, "without_run": [each.to_json() for each in without]}))
        return exits.DONE
    if page.runs or without:
        print(*lines(page.by_attention, without), sep="\n")
        if page.after is not None:
            print(f"Shown: the newest {n(len(page.runs), 'run')}; --since DATE or --job J shows others.")
    else:
        print("There are no such runs in the bucket." if options.job or options.since else "The bucket has no runs yet.")
    return exits.DONE


def _listed(options: Options) -> RunPage:
    """Raises ValueError, NoAccount, StoreUnavailable."""
    from dataclasses import replace

    from nightshift.fields.mistakes import nearest
    from nightshift.status.runs import Runs

    bucket = options.bucket or bucket_url("")
    if not bucket.startswith("gs://") or "/" in bucket.removeprefix("gs://").rstrip("/"):
        raise ValueError(f"{bucket!r} is not a bucket. Write gs://BUCKET.")
    runs = Runs(trouble.open_bucket(bucket.rstrip("/")))
    jobs = None if options.job is None else [options.job]
    page = runs.page(jobs=jobs)
    if options.job is not None and not page.runs:
        there = runs.page(count=1).jobs
        near = nearest(options.job, there)
        meant = f" Did you mean {near}?" if near else ""
        raise ValueError(f"The bucket has no runs of a job {options.job!r}.{meant}")
    if options.since is None:
        return page
    found = list(page.runs)
    while page.after is not None and found[-1].run.partition[:10] >= options.since:
        page = runs.page(jobs=jobs, after=page.after)
        found += page.runs
    kept = tuple(each for each in found if each.run.partition[:10] >= options.since)
    return replace(page, runs=kept, after=None)


def lines(runs: Iterable[Summary], without: Iterable[Unopened] = ()) -> Iterator[str]:
    """A table, and below each run that needs attention why. without: nights that have no run, among these by their time."""
    made: list[tuple[tuple[str, ...], Summary | None, list[str]]] = [
        (_cells(each), each, [attention.words for attention in each.attention]) for each in runs
    ]
    for night in without:
        cells: tuple[str, ...] = (night.job, "-", "-", night.kind, "", "", night.at[:16].replace("T", " "))
        later = (place for place, (row, _, why) in enumerate(made) if not why or row[-1] < cells[-1])
        made.insert(next(later, len(made)), (cells, None, [night.words]))
    widths = [max(len(row[place]) for row in (HEAD, *(cells for cells, _, _ in made))) for place in range(len(HEAD))]
    yield _line(HEAD, widths)
    for cells, each, why in made:
        yield _line(cells, widths, OF_STATES.get(cells[3]))
        if each and each.place and each.word != "shown":
            yield paint(f"  {each.place}", "dim")
        if each and each.completes:
            yield paint(f"  {each.completes}", "dim")
        for sentence in why:
            for number, words in enumerate(sentence.splitlines()):
                yield f"  {paint('!', 'red') if number == 0 else ' '} {words}"


def _cells(found: Summary) -> tuple[str, ...]:
    done = "" if found.done is None else f"{found.done:,}"
    rows = "" if found.rows is None else f"{found.rows:,}"
    return (
        found.run.job,
        found.run.partition,
        found.run.run_id,
        found.word,
        rows if done in ("", rows) else f"{done} of {rows}",
        "" if found.dead_letters is None else f"{found.dead_letters:,}",
        found.opened_at[:16].replace("T", " "),
    )


def _line(cells: Iterable[str], widths: Iterable[int], colour: str | None = None) -> str:
    placed = [
        f"{cell:<{width}}" if left else f"{cell:>{width}}" for cell, width, left in zip(cells, widths, _LEFT, strict=True)
    ]
    placed[3] = paint(placed[3], colour)
    return "  ".join(placed).rstrip()
