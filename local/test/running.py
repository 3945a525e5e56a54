"""Runs the style and type checks, and pytest for one tier at a time."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from xml.etree import ElementTree

from local.environments import ROOT, cache_dir, environment_dir, python_of
from local.test.groups import Group, Part, expression, files, group_of

REPORTS: Final = ROOT / ".reports"
"""TIER.xml is pytest's JUnit report of a tier's last run."""
NO_TESTS_COLLECTED: Final = 5
WORKERS: Final[Mapping[str, tuple[str, ...]]] = {
    "unit": ("-n", "auto"),
    "simulation": ("-n", "auto"),
    # More workers than cores, since a test often waits for processes to start. A file stays in one worker, with the
    # emulators it started.
    "integration": ("-n", "4", "--dist", "loadfile", "--no-loadscope-reorder"),
    # One cluster for the whole tier. A module or class stays in one worker; those that break the cluster come first
    # (`tests/cluster/conftest.py`), and each of their tests runs alone.
    "cluster": ("-n", "5", "--dist", "loadscope", "--no-loadscope-reorder"),
    "chaos": ("-n", "2", "--dist", "loadfile", "--no-loadscope-reorder"),
}


@dataclass(frozen=True)
class Case:
    """One test. seconds: with its set-up and tear-down. skipped: why, or None."""

    group: Group
    seconds: float
    skipped: str | None


@dataclass(frozen=True)
class Ran:
    """The result of a tier. ok: pytest ended without a failure."""

    ok: bool
    cases: tuple[Case, ...]


def failed_checks() -> list[str]:
    """Runs ruff and mypy; names those that found something."""
    tools = environment_dir("test") / "bin"
    checks = {
        "style": [str(tools / "ruff"), "check", "."],
        "format": [str(tools / "ruff"), "format", "--check", "--quiet", "."],
        # Shared by all clones: mypy goes by the contents of files.
        "types": [str(tools / "mypy"), "--cache-dir", str(cache_dir() / f"mypy-{environment_dir('test').name}")],
    }
    return [name for name, command in checks.items() if not _passes(name, command)]


def _passes(name: str, command: Sequence[str]) -> bool:
    print(f"== {name}", flush=True)
    return subprocess.run(command, cwd=ROOT, check=False).returncode == 0


def run_tier(
    tier: str,
    groups: Sequence[Group],
    *,
    part: Part,
    environment: Mapping[str, str],
    cluster: bool = False,
    arguments: Sequence[str] = (),
    nice: int | None = None,
) -> Ran:
    """Runs the tests of these groups, of a part of a tier. cluster: start a cluster for them.

    arguments: pytest's; a path among them replaces the groups' own files. nice: the niceness of a tier that
    runs beside another one; its output is kept for `print_aside`.
    """
    print(f"== {tier}{'' if nice is None else ', beside another tier'}", flush=True)
    paths = [file for file in files(tier, part) if group_of(tier, file) in groups]
    named = any((ROOT / argument.partition("::")[0]).exists() for argument in arguments)
    if not paths and not named:
        return Ran(True, ())
    REPORTS.mkdir(exist_ok=True)
    report = REPORTS / f"{tier}.xml"
    report.unlink(missing_ok=True)
    command = [str(python_of("test")), "-m", "pytest", "-q", "-m", expression(tier, part), f"--junit-xml={report}"]
    # Of the reports that pytest writes, this one names the file of a test.
    command += ["-o", "junit_family=xunit1"]
    command += ["--durations=8", *WORKERS[tier], *arguments, *([] if named else paths)]
    with tempfile.TemporaryDirectory(prefix="ns-") as folder:
        if cluster:
            state = Path(folder) / "c"
            command = [str(python_of("test")), "-m", "local.cluster", "--state", str(state), "run", "--", *command]
        if nice is not None:
            command = ["nice", "-n", str(nice), *command]
        with nullcontext() if nice is None else _output(tier).open("wb") as output:
            code = subprocess.run(command, cwd=ROOT, check=False, env=environment, stdout=output, stderr=output).returncode
    cases = tuple(_cases(tier, report)) if report.exists() else ()
    return Ran(code in (0, NO_TESTS_COLLECTED), cases)


def print_aside(tier: str) -> None:
    """The output of a tier that has run aside."""
    print(f"== {tier}\n{_output(tier).read_text()}", flush=True)


def _output(tier: str) -> Path:
    return REPORTS / f"{tier}.log"


def _cases(tier: str, report: Path) -> list[Case]:
    found = []
    for case in ElementTree.parse(report).getroot().iter("testcase"):
        skipped = case.find("skipped")
        reason = None if skipped is None else str(skipped.get("message"))
        found.append(Case(group_of(tier, str(case.get("file"))), float(case.get("time") or 0), reason))
    return found
