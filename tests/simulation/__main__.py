"""The simulator by hand.

python -m tests.simulation --seed N [--trace] [--without kill,lost_reply]     one schedule, again
python -m tests.simulation --seeds A:B                                        many, in as many processes as there are cores
python -m tests.simulation --soak MINUTES                                     random seeds until the time is over
python -m tests.simulation --publishing --seed N [--trace], or --seeds A:B    the same for the schedules of publishing
python -m tests.simulation --completing --seed N [--trace], or --seeds A:B    of nights that fail and their redos
python -m tests.simulation --streams --seed N, or --seeds A:B [--files]       the same for the schedules of streams
python -m tests.simulation --mutants                                          search a seed for each mutant: *mutants.json

Exit code 1 when a schedule failed; the failing seeds are named, each is the whole reproduction.
"""

from __future__ import annotations

import argparse
import itertools
import json
import logging
import multiprocessing
import os
import random
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any, Final

from tests.simulation import (
    completing,
    completing_mutants,
    night_mutants,
    publishing,
    publishing_mutants,
    stream_mutants,
    streams,
)
from tests.simulation.check import Violated
from tests.simulation.mutants import MUTANTS, SEEDS_FILE, Mutant, caught
from tests.simulation.runner import run_many
from tests.simulation.scenario import SWITCHES, draw
from tests.simulation.world import simulate

SEARCHED: Final = range(1000)
"""Seeds that are tried with each mutant."""
CAUGHT_BY: Final = 3
"""Schedules that must catch a mutant before the search ends with the quickest of them."""


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--seed", type=int, help="one schedule")
    what.add_argument("--seeds", metavar="A:B", help="the schedules from A to B, B left out")
    what.add_argument("--soak", type=float, metavar="MINUTES", help="random schedules for so long")
    what.add_argument("--mutants", action="store_true", help="find a schedule that catches each mutant")
    parser.add_argument("--publishing", action="store_true", help="with --seed or --seeds: schedules of publishing")
    parser.add_argument("--completing", action="store_true", help="with --seed or --seeds: schedules of redos")
    parser.add_argument("--streams", action="store_true", help="with --seed or --seeds: schedules of streams")
    parser.add_argument("--files", action="store_true", help="with --streams: files as the sink")
    parser.add_argument("--trace", action="store_true", help="with --seed: print everything that happens")
    parser.add_argument("--without", default="", metavar="A,B", help=f"switch faults off: {', '.join(SWITCHES)}")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    options = parser.parse_args(arguments)
    without = frozenset(filter(None, options.without.split(",")))
    if unknown := sorted(without - set(SWITCHES)):
        parser.error(f"cannot switch off {', '.join(unknown)}")
    if options.mutants:
        return _search()
    if options.publishing or options.completing or options.streams:
        if options.seed is None and not options.seeds:
            parser.error("--publishing, --completing and --streams need --seed or --seeds")
        if options.seed is not None and options.streams:
            return _one_stream(options.seed, options.files)
        if options.seed is not None:
            one = completing.simulate if options.completing else publishing.simulate
            return _one_publishing(one, options.seed, options.trace)
        others = streams.outcome_of_files if options.files else streams.outcome
        run, of = (others, "streams") if options.streams else (publishing.outcome, "publishing")
        run, of = (completing.outcome, "redos") if options.completing else (run, of)
        return _many_others(run, of, range(*map(int, options.seeds.split(":"))), options.processes)
    if options.seed is not None:
        return _one(options.seed, options.trace, without)
    if options.seeds:
        first, last = map(int, options.seeds.split(":"))
        return _many(range(first, last), without, options.processes)
    return _many(_until(time.monotonic() + options.soak * 60), without, options.processes)


def _one(seed: int, tracing: bool, without: frozenset[str]) -> int:
    print(draw(seed, without).describe())
    try:
        report = simulate(seed, tracing=tracing, without=without)
    except Violated as error:
        print(*error.trace, sep="\n")
        print(error)
        return 1
    print(*report.trace, sep="\n")
    print(f"seed {seed}: all invariants hold; {report.computed} rows computed for {report.rows}, {report.pods} pods, ", end="")
    print(f"{report.took_s:.1f} virtual seconds, {report.steps} steps")
    return 0


def _search() -> int:
    found: dict[str, int] = {}
    for mutant in MUTANTS:
        seed, what = _quickest(mutant) or (None, "NOT CAUGHT")
        print(f"{'-' if seed is None else seed:>5}  {mutant.name}: {what.splitlines()[0]}", flush=True)
        if seed is not None:
            found[mutant.name] = seed
    SEEDS_FILE.write_text(json.dumps(found, indent=1) + "\n")
    others = (
        _search_others(publishing_mutants.search(SEARCHED), publishing_mutants.SEEDS_FILE),
        _search_others(completing_mutants.search(SEARCHED), completing_mutants.SEEDS_FILE),
        _search_others(stream_mutants.search(SEARCHED), stream_mutants.SEEDS_FILE),
        _search_others(night_mutants.search(SEARCHED), night_mutants.SEEDS_FILE),
    )
    return 0 if len(found) == len(MUTANTS) and all(others) else 1


def _quickest(mutant: Mutant) -> tuple[int, str] | None:
    """Of the first schedules that catch the mutant, the one that takes the least time: some go on for very long with it."""
    found = []
    for seed in SEARCHED:
        began = time.monotonic()
        if what := caught(mutant, seed):
            found.append((time.monotonic() - began, seed, what))
        if len(found) == CAUGHT_BY:
            break
    return min(found)[1:] if found else None


def _search_others(search: Iterable[tuple[Mutant, int | None, str]], file: Path) -> bool:
    """Whether each of these mutants was caught."""
    found: dict[str, int] = {}
    complete = True
    for each, caught_by, what in search:
        print(f"{'-' if caught_by is None else caught_by:>5}  {each.name}: {what}", flush=True)
        complete = complete and caught_by is not None
        if caught_by is not None:
            found[each.name] = caught_by
    file.write_text(json.dumps(found, indent=1) + "\n")
    return complete


def _one_publishing(simulated: Callable[..., publishing.Report], seed: int, tracing: bool) -> int:
    try:
        report = simulated(seed, print if tracing else lambda line: None)
    except Violated as error:
        print(error)
        return 1
    print(f"seed {seed}: all invariants hold; {report.steps} steps, {dict(report.seen)}")
    return 0


def _one_stream(seed: int, files: bool) -> int:
    logging.basicConfig(format="%(message)s")
    scenario = streams.draw(seed)
    print(streams.into_files(scenario) if files else scenario)
    try:
        print(f"all invariants hold: {streams.simulate_files(seed) if files else streams.simulate(seed)}")
    except Violated as error:
        print(error)
        return 1
    return 0


def _many_others(run: Callable[[int], Any], what: str, seeds: Sequence[int], processes: int) -> int:
    began, failed, seen = time.monotonic(), 0, Counter[str]()
    with ProcessPoolExecutor(processes, multiprocessing.get_context("spawn")) as pool:
        for outcome in pool.map(run, seeds, chunksize=25):
            if isinstance(outcome, str):
                failed += 1
                print(f"FAILED {outcome}", flush=True)
            else:
                seen += outcome.seen
    print(f"{len(seeds)} schedules of {what} in {time.monotonic() - began:.0f} s: {failed} failed")
    print(*(f"{count:>10,}  {name}" for name, count in sorted(seen.items())), sep="\n")
    return 1 if failed else 0


def _until(deadline: float) -> Iterator[int]:
    first = random.SystemRandom().randrange(1 << 40)
    print(f"random seeds from {first}")
    return itertools.takewhile(lambda _: time.monotonic() < deadline, itertools.count(first))


def _many(seeds: Iterable[int], without: frozenset[str], processes: int) -> int:
    began = time.monotonic()
    total = run_many(seeds, without, processes, lambda seed, text: print(f"FAILED {text}", flush=True))
    seconds = time.monotonic() - began
    print(
        f"{total.schedules} schedules in {seconds:.0f} s with {processes} processes: {len(total.failed)} failed"
        f"{': ' + ' '.join(map(str, sorted(total.failed))) if total.failed else ''}; "
        f"{total.computed} rows computed for {total.rows}, {total.pods} pods, {total.hours:.0f} virtual hours"
    )
    print(*(f"{count:>10,}  {name}" for name, count in sorted(total.seen.items())), sep="\n")
    return 1 if total.failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
