"""Runs everything this machine can: style, types, then the tests tier by tier; says what was skipped and why.

python3 -m local.test [--tier unit] [--tier chaos] [-- PYTEST ARGUMENTS]

.reports/TIER.xml is pytest's JUnit report of a tier's last run.
"""

from __future__ import annotations

import argparse
import os
import secrets
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import IO
from xml.etree import ElementTree

from local.cluster import build, packages
from local.environments import ROOT, cache_dir, environment_dir, python_of

# As they are reported; `_run_tiers` says in which order they run, and what beside what.
TIERS = ("unit", "simulation", "integration", "cluster", "chaos")
NO_TESTS_COLLECTED = 5
REPORTS = ROOT / ".reports"
LOWLY = ("nice", "-n", "19")
# The cluster is one for the whole tier; a test that breaks it runs alone.
# Integration and chaos wait for processes more than they compute. A file stays in one worker, with the emulators it started.
WORKERS = {
    "unit": ("-n", "auto"),
    "simulation": ("-n", "auto"),
    "integration": ("-n", "3", "--dist", "loadfile"),
    "cluster": ("-n", "2", "--dist", "loadfile"),
    "chaos": ("-n", "2", "--dist", "loadfile"),
}


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tier", action="append", choices=TIERS, help="only this tier, without style and types")
    parser.add_argument("rest", nargs="*", metavar="PYTEST ARGUMENTS")
    options = parser.parse_args(arguments)
    failed = [] if options.tier else [name for name, command in _checks() if not _passes(name, command)]
    tiers = options.tier or TIERS
    if "cluster" in tiers and _own_cluster():
        packages.ensure(lambda line: print(f"[cluster] {line}", flush=True))
    ran = _run_tiers(tiers, options.rest)
    failed += [tier for tier in tiers if ran[tier].code not in (0, NO_TESTS_COLLECTED)]
    _report({tier: ran[tier] for tier in tiers}, failed)
    return 1 if failed else 0


@dataclass(frozen=True)
class Ran:
    """How a tier went. code: pytest's. reasons: why tests were skipped."""

    code: int
    counts: dict[str, int]
    reasons: list[str]


def _run_tiers(tiers: Sequence[str], rest: Sequence[str]) -> dict[str, Ran]:
    """One after the other, but for what no clock is looked at for, which takes what others leave of two cores: the cluster's
    programs are built beside the first tiers, and the simulation runs beside the cluster's tests, which wait for kubelets and
    controllers half of the time. A tier that has grace periods of real seconds has no other such tier beside it.
    """
    if "cluster" not in tiers or len(tiers) == 1:
        return {tier: _run_tier(tier, rest) for tier in tiers}
    ran: dict[str, Ran] = {}
    with tempfile.TemporaryFile("w+") as output, ThreadPoolExecutor(1) as beside:
        building = beside.submit(_build_cluster, output)
        for tier in ("unit", "integration"):
            if tier in tiers:
                ran[tier] = _run_tier(tier, rest)
        building.result()
        _copy(output)
    with tempfile.TemporaryFile("w+") as output, ThreadPoolExecutor(1) as beside:
        if "simulation" in tiers:
            simulation = beside.submit(_run_tier, "simulation", rest, output, prefix=LOWLY)
        ran["cluster"] = _run_tier("cluster", rest)
        if "simulation" in tiers:
            ran["simulation"] = simulation.result()
        _copy(output)
    return {**ran, **{tier: _run_tier(tier, rest) for tier in tiers if tier not in ran}}


def _build_cluster(output: IO[str]) -> None:
    if _own_cluster():
        # Up to twenty minutes of two cores, the first time: the tests beside it come first.
        command = [*LOWLY, str(python_of("test")), "-m", "local.cluster", "build"]
        subprocess.run(command, cwd=ROOT, check=False, stdout=output, stderr=output)


def _copy(output: IO[str]) -> None:
    output.seek(0)
    print(output.read(), end="", flush=True)


def _checks() -> list[tuple[str, list[str]]]:
    tools = environment_dir("test") / "bin"
    places = ["plugins", "dags", "local", "tests", "benchmarks"]
    return [
        ("style", [str(tools / "ruff"), "check", *places]),
        ("format", [str(tools / "ruff"), "format", "--check", "--quiet", *places]),
        # Of every clone the same: mypy goes by what a file holds.
        ("types", [str(tools / "mypy"), "--cache-dir", str(cache_dir() / f"mypy-{environment_dir('test').name}")]),
    ]


def _passes(name: str, command: Sequence[str]) -> bool:
    print(f"== {name}", flush=True)
    return subprocess.run(command, cwd=ROOT, check=False).returncode == 0


def _run_tier(tier: str, rest: Sequence[str], output: IO[str] | None = None, prefix: Sequence[str] = ()) -> Ran:
    """output: where to write instead of this process's own. prefix: goes before the command."""
    print(f"== {tier}", flush=True, file=output)
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    if tier == "chaos":
        # Another one each time, and said here, since a worker's own words are not shown.
        print(
            f"NIGHTSHIFT_CHAOS_SEED={environment.setdefault('NIGHTSHIFT_CHAOS_SEED', str(secrets.randbelow(1 << 31)))}",
            flush=True,
        )
    with tempfile.TemporaryDirectory() as folder:
        REPORTS.mkdir(exist_ok=True)
        report = REPORTS / f"{tier}.xml"
        report.unlink(missing_ok=True)
        command = [str(python_of("test")), "-m", "pytest", "-q", "-m", tier, f"--junit-xml={report}"]
        command += ["--durations=8", *WORKERS.get(tier, ()), *rest]
        if not any((ROOT / argument.partition("::")[0]).exists() for argument in rest):
            command += files(tier)
        if tier == "cluster" and _own_cluster():
            command = _with_cluster(Path(folder), command)
        command = [*prefix, *command]
        began = time.monotonic()
        code = subprocess.run(command, cwd=ROOT, check=False, env=environment, stdout=output, stderr=output).returncode
        cases = list(ElementTree.parse(report).getroot().iter("testcase")) if report.exists() else []
    skipped = [case for case in cases if case.find("skipped") is not None]
    broken = [case for case in cases if case.find("failure") is not None or case.find("error") is not None]
    counts = {
        "passed": len(cases) - len(skipped) - len(broken),
        "failed": len(broken),
        "skipped": len(skipped),
        "seconds": round(time.monotonic() - began),
    }
    why = sorted({str(element.get("message")) for case in skipped if (element := case.find("skipped")) is not None})
    return Ran(code, counts, why)


def files(tier: str) -> list[str]:
    """The files with tests of a tier: each of its processes would import all the others too, to find that they are not."""
    every = sorted((ROOT / "tests").rglob("test_*.py"))
    return [str(file.relative_to(ROOT)) for file in every if f"pytest.mark.{tier}" in file.read_text()]


def _own_cluster() -> bool:
    """Whether the tier gets a cluster of its own."""
    return not packages.obstacle() and not build.obstacle() and "NIGHTSHIFT_CLUSTER" not in os.environ


def _with_cluster(folder: Path, command: list[str]) -> list[str]:
    """The command, for whose time a cluster is up; building it the first time takes a quarter of an hour, and it says so."""
    return [str(python_of("test")), "-m", "local.cluster", "--state", str(folder / "c"), "run", "--", *command]


def _report(ran: dict[str, Ran], failed: Sequence[str]) -> None:
    print("== what ran")
    for tier, count in ((tier, each.counts) for tier, each in ran.items()):
        if not count["passed"] and not count["failed"] and not count["skipped"]:
            print(f"{tier:<12} no tests: nothing matches")
            continue
        print(
            f"{tier:<12} {count['passed']} passed, {count['failed']} failed, {count['skipped']} skipped in {count['seconds']} s"
        )
        for reason in ran[tier].reasons:
            print(f"             skipped: {reason}")
    print(f"failed: {', '.join(failed)}" if failed else "everything that ran has passed")
    total = {name: sum(each.counts[name] for each in ran.values()) for name in ("passed", "failed", "skipped")}
    print(f"{total['passed']} passed, {total['failed']} failed, {total['skipped']} skipped")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
