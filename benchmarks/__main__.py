"""``python -m benchmarks [p1 p2 ...] [--quick] [--no-page]``: measures, and writes each into docs/develop/benchmarks.md at
once."""

from __future__ import annotations

import argparse
import importlib
import logging
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from benchmarks import report
from benchmarks.report import Report

MEASURES: Final = (
    "p1",
    "p2",
    "p3",
    "p4",
    "p5",
    "p6",
    "p6b",
    "p7",
    "p8",
    "p9",
    "p10",
    "p11",
    "p12",
    "p13",
    "p14",
    "p15",
    "p16",
    "p17",
    "p18",
)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("measures", nargs="*", metavar="MEASURE", help=f"any of {', '.join(MEASURES)} (default: all)")
    parser.add_argument("--quick", action="store_true", help="small sizes, only to see that a measure works")
    parser.add_argument(
        "--no-page", action="store_true", help="leave the page as it is, for example for part of one (P1=MiniLM)"
    )
    options = parser.parse_args()
    if unknown := [name for name in options.measures if name not in MEASURES]:
        parser.error(f"there is no measure {unknown[0]!r}; there are {', '.join(MEASURES)}")
    logging.getLogger("nightshift").setLevel(logging.ERROR)
    missed = []
    for name in options.measures or MEASURES:
        began, load = datetime.now(UTC), report.load()
        report.say(f"{name}: load {load}")
        module = importlib.import_module(f"benchmarks.{name}")
        with tempfile.TemporaryDirectory(prefix=f"nightshift-{name}-") as folder:
            done: Report = module.measure(Path(folder), options.quick)
        section = report.markdown(done, began, load)
        print(section, flush=True)
        if not (options.quick or options.no_page):
            report.write(done.measure, section)
        missed += [f"{name} {figure.name}" for figure in done.figures if figure.met is False]
    report.say("every goal is met" if not missed else f"goals missed: {'; '.join(missed)}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
