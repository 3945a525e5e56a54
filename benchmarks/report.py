"""The result of a measure, and how a run of measures is written down."""

from __future__ import annotations

import os
import platform
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
PLUGINS: Final = str(ROOT / "plugins")
RESULTS: Final = ROOT / "benchmarks" / "results.txt"
LIBRARIES: Final = ("uvloop", "orjson", "pyarrow", "obstore", "aiohttp", "openai")


@dataclass(frozen=True)
class Figure:
    """One line of the table. met: None if the line has no goal."""

    name: str
    value: str
    goal: str = ""
    met: bool | None = None


@dataclass
class Report:
    """The result of a measure. method: how it was measured; notes: what the figures are based on, one line each."""

    measure: str
    method: str
    figures: list[Figure] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def add(self, name: str, value: str, goal: str = "", met: bool | None = None) -> None:
        """Adds a line to the table and prints it at once."""
        self.figures.append(Figure(name, value, goal, met))
        say(f"{self.measure} {name}: {value}" + (f" (goal {goal}: {_answer(met)})" if goal else ""))

    def note(self, text: str) -> None:
        self.notes.append(text)
        say(f"{self.measure} {text}")


def say(text: str) -> None:
    print(f"[bench] {text}", file=sys.stderr, flush=True)


def load() -> str:
    """The machine's load over one and five minutes."""
    one, five, _ = os.getloadavg()
    return f"{one:.1f}/{five:.1f}"


def markdown(report: Report, began: datetime, load_before: str) -> str:
    """The section of one measure."""
    return "\n".join([*_lines(report, began, load_before), ""])


def _lines(report: Report, began: datetime, load_before: str) -> Iterator[str]:
    minutes = (datetime.now(UTC) - began).total_seconds() / 60
    yield f"### {report.measure}, {began:%Y-%m-%d %H:%M} UTC"
    yield ""
    loads = f"load average (1 min/5 min) {load_before} before, {load()} after"
    yield f"Commit {commit()}, {minutes:.1f} min, {loads}. {machine()}"
    yield ""
    yield "| Figure | Value | Goal | Met |"
    yield "|---|---|---|---|"
    for figure in report.figures:
        yield f"| {figure.name} | {figure.value} | {figure.goal} | {_answer(figure.met)} |"
    yield ""
    yield f"{' '.join(report.method.split())}"
    if report.notes:
        yield ""
        yield from (f"- {note}" for note in report.notes)
    yield ""


def _answer(met: bool | None) -> str:
    return "" if met is None else "yes" if met else "**no**"


def commit() -> str:
    """Of this clone, and whether the product was changed since."""
    head = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True)
    changed = subprocess.run(["git", "status", "--porcelain", "plugins"], cwd=ROOT, capture_output=True, text=True).stdout
    return (head.stdout.strip() or "unknown") + (" with uncommitted changes in plugins/" if changed.strip() else "")


def machine() -> str:
    """Processor, memory, and the versions that matter."""
    libraries = ", ".join(f"{name} {version(name)}" for name in LIBRARIES)
    return f"{os.cpu_count()} cores {_processor()}, {_memory_gib():.0f} GiB, Python {platform.python_version()}, {libraries}."


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.machine()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())


def _memory_gib() -> float:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30


def write(measure: str, section: str) -> None:
    """Puts a measure's section into the file, replacing its previous one: it has only current figures."""
    text = RESULTS.read_text() if RESULTS.exists() else "# Benchmarks\n\n## Results\n\n"
    RESULTS.write_text(replaced(text, measure, section))


def replaced(page: str, measure: str, section: str) -> str:
    """The page with `section` as the only one of `measure`; a new section goes to the end."""
    head, *old = re.split(r"^(?=### )", page, flags=re.MULTILINE)
    new = section.rstrip() + "\n\n"
    mine = [place for place, each in enumerate(old) if each.startswith(f"### {measure},")]
    others = [each.rstrip() + "\n\n" for each in old if not each.startswith(f"### {measure},")]
    others.insert(mine[0] if mine else len(others), new)
    return (head + "".join(others)).rstrip() + "\n"


def spread(values: Sequence[float], form: str = ".3f") -> str:
    """The median with all values, as the table shows them."""
    return f"{median(values):{form}} (of {', '.join(f'{value:{form}}' for value in values)})"
