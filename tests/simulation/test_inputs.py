"""The key of the simulation changes with each file that decides its outcome."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.simulation import inputs

pytestmark = [pytest.mark.simulation, pytest.mark.gate]


def test_the_inputs_are_the_driver_the_run_publishing_and_the_simulator() -> None:
    found = {str(file.relative_to(inputs.ROOT)) for file in inputs.inputs()}

    rooms = ("plugins/nightshift/driver", "plugins/nightshift/run")
    # Not what only a pod has around the worker.
    process = {f"{rooms[0]}/{name}.py" for name in ("__main__", "metrics", "process", "reader", "signals", "http")}
    modules = {str(file.relative_to(inputs.ROOT)) for room in rooms for file in (inputs.ROOT / room).glob("*.py")}
    needed = {f"{rooms[0]}/{name}.py" for name in ("worker", "scheduler", "feeder", "commits", "codec", "sender", "health")}
    assert needed <= modules & found
    assert f"{rooms[1]}/ledger.py" in found
    assert f"{rooms[1]}/chunks.py" in found
    assert {f"plugins/nightshift/{name}.py" for name in ("warehouse/publish", "operators/publish", "tasks/base")} <= found
    assert {"tests/simulation/mutants.json", "tests/simulation/world.py", "tests/builders.py", "pyproject.toml"} <= found
    assert any(name.startswith("requirements/") for name in found)
    assert process - found, "it follows imports, and does not take whole folders"


def test_a_changed_driver_changes_the_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = [Path("plugins/nightshift/driver/scheduler.py"), Path("plugins/nightshift/run/ledger.py")]
    for file in files:
        copy = tmp_path / file
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes((inputs.ROOT / file).read_bytes())
    before = inputs.key(inputs.ROOT / file for file in files)
    monkeypatch.setattr(inputs, "ROOT", tmp_path)
    copies = [tmp_path / file for file in files]
    assert inputs.key(copies) == before

    driver = copies[0]
    driver.write_text(driver.read_text() + "\n")

    assert inputs.key(copies) != before
