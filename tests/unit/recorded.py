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
