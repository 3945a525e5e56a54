"""``python -m benchmarks [p2 http_cpu ...] [--quick] [--no-page]``: measures, and writes each section of
benchmarks/results.txt as soon as it has it."""

from __future__ import annotations

import argparse
import importlib
import logging
import tempfile
from datetime import UTC, datetime
from pathlib import Path

from benchmarks import report
from benchmarks.measures import MEASURES, number_of
from benchmarks.report import Report


def main() -> int:
    options = _options()
    logging.getLogger("nightshift").setLevel(logging.ERROR)
    missed = []
    for number in options.measures or MEASURES:
        name = number.lower()
        began, load = datetime.now(UTC), report.load()
        report.say(f"{name} {MEASURES[number]}: load {load}")
        module = importlib.import_module(f"benchmarks.{MEASURES[number]}")
        done = Report(number, module.METHOD)
        with tempfile.TemporaryDirectory(prefix=f"nightshift-{name}-") as folder:
            module.measure(done, Path(folder), options.quick)
        section = report.markdown(done, began, load)
        print(section, flush=True)
        if not (options.quick or options.no_page):
            report.write(number, section)
        missed += [f"{name} {figure.name}" for figure in done.figures if figure.met is False]
    report.say("every goal is met" if not missed else f"goals missed: {'; '.join(missed)}")
    return 0


def _options() -> argparse.Namespace:
    listed = "\n".join(f"  {number.lower():<4} {subject}" for number, subject in MEASURES.items())
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description=__doc__,
        epilog=f"measures, each by its number or by its subject:\n{listed}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("measures", nargs="*", metavar="MEASURE", type=_measure, help="any of those below (default: all)")
    parser.add_argument("--quick", action="store_true", help="small sizes, only to see that a measure works")
    parser.add_argument(
        "--no-page", action="store_true", help="leave the page as it is, for example for part of one (P1=MiniLM)"
    )
    return parser.parse_args()


def _measure(word: str) -> str:
    number = number_of(word)
    if number is None:
        raise argparse.ArgumentTypeError(f"there is no measure {word!r}; there are {', '.join(MEASURES.values())}")
    return number


if __name__ == "__main__":
    raise SystemExit(main())
