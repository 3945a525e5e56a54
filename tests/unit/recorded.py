"""What a real cluster said of JobSets, recorded by ``python -m tests.cluster.record``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from nightshift.jobset.observation import Observation

FOLDER = Path(__file__).parent / "observations"
CASES = sorted(path.stem for path in FOLDER.glob("*.json"))


def recorded(case: str) -> Observation:
    """The case's objects, all of them fresh: a test may alter them."""
    said: dict[str, Any] = json.loads((FOLDER / f"{case}.json").read_text())
    return Observation(said["jobset"], tuple(said["jobs"]), tuple(said["pods"]), said["workload"], tuple(said["events"]))


def as_text(case: dict[str, Any]) -> str:
    """A case as its file has it: an object a line, keys in order, so that the same recording is the same text."""
    lines = []
    for name, value in sorted(case.items()):
        if isinstance(value, list) and value:
            objects = ",\n".join(_one_line(each) for each in value)
            lines.append(f"{_one_line(name)}: [\n{objects}\n]")
        else:
            lines.append(f"{_one_line(name)}: {_one_line(value)}")
    return "{\n" + ",\n".join(lines) + "\n}\n"


def _one_line(value: Any) -> str:
    return json.dumps(value, sort_keys=True, ensure_ascii=False)
