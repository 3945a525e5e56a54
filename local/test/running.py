"""Runs the style and type checks, and pytest for one tier at a time."""

from __future__ import annotations

import json
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, TextIO

from local.environments import ROOT, cache_dir, environment_dir, python_of
from local.test.groups import Group, Part, expression, files, group_of
from local.test.progress import Progress, Ran

REPORTS: Final = ROOT / ".reports"
"""Of each tier's last run: TIER.log is what pytest said, TIER.jsonl what became of each test (`local.test.events`)."""
NO_TESTS_COLLECTED: Final = 5
LOOK_S: Final = 0.2
LAST_WORDS: Final = 4000
"""Characters of pytest's output that are printed if it ends without a test that failed."""
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
    runs beside another one.
    """
    print(f"== {tier}{'' if nice is None else ', beside another tier'}", flush=True)
    paths = [file for file in files(tier, part) if group_of(tier, file) in groups]
    named = any((ROOT / argument.partition("::")[0]).exists() for argument in arguments)
    if not paths and not named:
        return Ran(True, ())
    REPORTS.mkdir(exist_ok=True)
    events, output = REPORTS / f"{tier}.jsonl", REPORTS / f"{tier}.log"
    events.write_text("")
    command = [str(python_of("test")), "-m", "pytest", "-q", "-m", expression(tier, part)]
    command += ["-p", "local.test.events", "--events", str(events)]
    command += ["--durations=8", *WORKERS[tier], *arguments, *([] if named else paths)]
    progress, began = Progress(tier, gate=part != "all"), time.monotonic()
    with tempfile.TemporaryDirectory(prefix="ns-") as folder, output.open("wb") as said:
        if cluster:
            state = Path(folder) / "c"
            command = [str(python_of("test")), "-m", "local.cluster", "--state", str(state), "run", "--", *command]
        if nice is not None:
            command = ["nice", "-n", str(nice), *command]
        process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=said, stderr=said)
        with events.open() as file:
            while process.poll() is None:
                _follow(file, progress)
                time.sleep(LOOK_S)
            _follow(file, progress)
    for group in progress.unfinished():
        print(progress.line(group), flush=True)
    cases = tuple(progress.cases.values())
    ok = process.returncode in (0, NO_TESTS_COLLECTED)
    if not ok and not any(case.failed for case in cases):
        print(f"{tier}: pytest ended with {process.returncode}; {output}:\n{output.read_text()[-LAST_WORDS:]}", flush=True)
    return Ran(ok, cases, time.monotonic() - began, frozenset(group.name for group in progress.unfinished()))


def _follow(file: TextIO, progress: Progress) -> None:
    """Prints what is new. The file is written line by line, so half of one is the beginning of the next."""
    while line := file.readline():
        while not line.endswith("\n"):
            line += file.readline()
        for said in progress.take(json.loads(line)):
            print(said, flush=True)
