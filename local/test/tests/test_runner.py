"""How ``python3 -m local.test`` runs a tier, when it runs one again, and with what code it ends."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from local.environments import environment_dir
from local.test import __main__ as runner
from local.test import running, unchanged
from local.test.groups import TIERS, Group, Part, group_of, groups_of
from local.test.progress import Case, Ran

pytestmark = pytest.mark.unit

TIER = "simulation"
UNIT = groups_of(["unit"])


class APrerequisites:
    """Has all that tests need, and makes nothing."""

    own_cluster = False

    def __init__(self, _: Any, *, everything: bool) -> None: ...

    def prepare(self, needs: Iterable[str]) -> None: ...

    def wait_for_cluster(self) -> None: ...

    def lacks(self, needs: Iterable[str]) -> None: ...

    def environment(self) -> dict[str, str]:
        return {}


class Runs:
    """What stands in for pytest: how a tier ends, how often it ran, and which tiers ran aside."""

    def __init__(self) -> None:
        self.ok = True
        self.count = 0
        self.parts: list[Part] = []
        self.aside: list[str] = []
        self.alone: list[str] = []

    def __call__(self, tier: str, groups: Iterable[Group], *, part: Part, nice: int | None, **_: Any) -> Ran:
        self.count += 1
        self.parts.append(part)
        (self.alone if nice is None else self.aside).append(tier)
        [group] = UNIT
        return Ran(self.ok, (Case("tests/unit/x.py", group, 1.0),))


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Runs:
    """The runner, with the simulation's inputs as a file of the test."""
    found = Runs()
    monkeypatch.setenv("NIGHTSHIFT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(runner, "Prerequisites", APrerequisites)
    monkeypatch.setattr(running, "run_tier", found)
    monkeypatch.setattr(unchanged, "key_of", lambda tier: (tmp_path / "key").read_text() if tier == TIER else None)
    (tmp_path / "key").write_text("a")
    return found


class TestATierThatHasPassed:
    def test_is_not_run_again_while_its_inputs_are_the_same(self, runs: Runs, tmp_path: Path) -> None:
        assert [runner.main(["--tier", TIER, "--require", TIER]) for _ in range(2)] == [0, 0]
        assert runs.count == 1

        (tmp_path / "key").write_text("b")
        runner.main(["--tier", TIER])
        assert runs.count == 2

    def test_is_run_again_when_tests_are_chosen(self, runs: Runs) -> None:
        runner.main(["--tier", TIER])

        runner.main(["--tier", TIER, "--", "-k", "x"])

        assert runs.count == 2

    def test_leaves_only_the_rest_to_all_tests(self, runs: Runs, tmp_path: Path) -> None:
        runner.main(["--tier", TIER])
        runner.main(["--tier", TIER, "--all"])
        (tmp_path / "key").write_text("b")
        runner.main(["--tier", TIER, "--all"])

        assert runs.parts == ["gate", "rest", "all"]
        assert runner.main(["--tier", TIER, "--require", TIER]) == 0
        assert runs.count == 3, "all tests that passed are those of the gate, too"

    def test_is_not_one_of_which_only_chosen_tests_have(self, runs: Runs) -> None:
        runner.main(["--tier", TIER, "--", "-k", "x"])
        runner.main(["--tier", TIER])

        assert runs.count == 2

    def test_is_not_one_that_has_failed(self, runs: Runs) -> None:
        runs.ok = False

        assert [runner.main(["--tier", TIER]) for _ in range(2)] == [1, 1]
        assert runs.count == 2


def test_a_required_tier_that_did_not_run_is_a_failure(runs: Runs) -> None:
    assert runner.main(["--tier", "unit"]) == 0
    assert runner.main(["--tier", "unit", "--require", "chaos"]) == 1


class TestATierBesideAnother:
    def test_runs_aside(self, runs: Runs) -> None:
        assert runner.main(["--all", "--tier", "unit", "--tier", TIER, "--tier", "cluster"]) == 0

        assert (runs.alone, runs.aside) == (["unit", "cluster"], [TIER])

    @pytest.mark.parametrize("which", [["--all"], []], ids=["all", "gate"])
    def test_may_be_one_of_several(self, runs: Runs, which: list[str]) -> None:
        assert runner.main([*which, *(word for tier in TIERS for word in ("--tier", tier))]) == 0

        assert (runs.alone, sorted(runs.aside)) == (["unit", "cluster", "chaos"], ["integration", TIER])

    def test_runs_alone_without_the_other(self, runs: Runs) -> None:
        assert runner.main(["--all", "--tier", TIER]) == 0

        assert (runs.alone, runs.aside) == ([TIER], [])

    def test_fails_the_run_if_it_fails(self, runs: Runs) -> None:
        runs.ok = False

        assert runner.main(["--all", "--tier", TIER, "--tier", "cluster"]) == 1

    def test_that_has_passed_is_not_run(self, runs: Runs) -> None:
        runner.main(["--tier", TIER])
        runner.main(["--tier", TIER, "--tier", "cluster"])

        assert runs.aside == []


class TestKey:
    @pytest.fixture
    def inputs(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        """The module that lists the inputs of a tier."""
        monkeypatch.setattr(unchanged, "ROOT", tmp_path)
        monkeypatch.setattr(unchanged, "INPUTS", {TIER: "inputs"})
        monkeypatch.setattr(unchanged, "python_of", lambda _: sys.executable)
        (tmp_path / "inputs.py").write_text("print('0123456789abcdef' * 4)\nprint('a file')\n")
        return tmp_path / "inputs.py"

    def test_is_of_the_inputs_and_of_the_pins(self, inputs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        key = unchanged.key_of(TIER)
        real = environment_dir("test")
        monkeypatch.setattr("local.test.unchanged.environment_dir", lambda name: real.with_name(f"{name}-of-other-pins"))

        assert key == f"{'0123456789abcdef' * 2}-{real.name}"
        assert unchanged.key_of(TIER) != key

    def test_there_is_none_for_inputs_that_cannot_be_imported(self, inputs: Path) -> None:
        inputs.write_text("print('x')\nraise ImportError\n")

        assert unchanged.key_of(TIER) is None

    def test_there_is_none_for_a_tier_whose_inputs_no_program_lists(self, inputs: Path) -> None:
        assert unchanged.key_of("unit") is None


class TestAGroupOfStandIns:
    STORAGE = group_of("integration", "local/storage/tests/test_x.py")

    @pytest.fixture
    def repository(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        for name, text in {
            "local/storage/server.py": "import nightshift.store",
            "local/storage/tests/test_it.py": "from local.tools import waiting",
            "local/tools/waiting.py": "",
            "local/other/thing.py": "",
            "plugins/nightshift/store.py": "",
        }.items():
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_text(text)
        monkeypatch.setattr(unchanged, "ROOT", tmp_path)
        return tmp_path

    @pytest.mark.parametrize(
        ("changed", "matters"),
        [
            ("local/storage/server.py", True),
            ("local/storage/data.json", True),
            ("local/storage/tests/test_it.py", True),
            ("local/tools/waiting.py", True),
            ("plugins/nightshift/store.py", True),
            ("local/other/thing.py", False),
        ],
    )
    def test_has_a_key_of_what_it_tests_and_imports(self, repository: Path, changed: str, matters: bool) -> None:
        key = unchanged.key_of_group(self.STORAGE)
        file = repository / changed
        file.write_text((file.read_text() if file.exists() else "") + "\n#")

        assert (unchanged.key_of_group(self.STORAGE) != key) == matters

    def test_is_not_one_that_tests_the_product(self) -> None:
        assert unchanged.key_of_group(group_of("integration", "tests/integration/driver/test_x.py")) is None
        assert unchanged.key_of_group(UNIT[0]) is None

    @pytest.mark.parametrize(("skipped", "runs_again"), [(None, False), ("no disk", True)])
    def test_is_not_run_again_once_all_of_it_has_passed(
        self, skipped: str | None, runs_again: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        asked: list[bool] = []

        def run(tier: str, groups: list[Group], **_: Any) -> Ran:
            asked.append(self.STORAGE in groups)
            return Ran(True, tuple(Case("x", group, 1.0, skipped) for group in groups))

        monkeypatch.setenv("NIGHTSHIFT_CACHE", str(tmp_path))
        monkeypatch.setattr(runner, "Prerequisites", APrerequisites)
        monkeypatch.setattr(running, "run_tier", run)
        for _ in range(2):
            runner.main(["--tier", "integration"])

        assert asked == [True, runs_again]


class TestPytest:
    @pytest.fixture
    def ended(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        """What runs in place of a Python that would run pytest."""
        program = tmp_path / "python"
        monkeypatch.setattr(running, "REPORTS", tmp_path / "reports")
        monkeypatch.setattr(running, "python_of", lambda _: program)
        return program

    def ran(self, program: Path, script: str) -> Ran:
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(0o755)
        return running.run_tier("unit", UNIT, part="gate", environment={})

    @pytest.mark.parametrize(("code", "ok"), [(0, True), (1, False), (2, False), (5, True)])
    def test_its_exit_code_says_whether_all_passed(self, ended: Path, code: int, ok: bool) -> None:
        """5: none of the tests was chosen."""
        assert self.ran(ended, f"exit {code}").ok == ok

    def test_that_ends_without_a_failed_test_is_quoted(self, ended: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.ran(ended, "echo 'ERROR: unknown option'; exit 4")

        said = capsys.readouterr().out
        assert "unit: pytest ended with 4" in said
        assert "ERROR: unknown option" in said

    @pytest.mark.parametrize("workers", ["0", "2"])
    def test_what_becomes_of_each_test_is_said_and_kept(
        self, workers: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """A real pytest."""
        monkeypatch.setattr(running, "REPORTS", tmp_path / "reports")
        monkeypatch.setattr(running, "WORKERS", {"unit": ("-n", workers, "-p", "no:cacheprovider")})
        monkeypatch.setattr(running, "files", lambda *_: ["local/test/tests/outcomes.py"])

        ran = running.run_tier("unit", UNIT, part="gate", environment=dict(os.environ))

        assert not ran.ok
        said = capsys.readouterr().out
        assert "FAILED local/test/tests/outcomes.py::test_fails (call)" in said
        assert "assert 'ROWS' == 'answers'" in said
        assert "FAILED  unit                    2 failed, 1 passed, 2 skipped, 0 s of 120 s (" in said
        assert {case.test.partition("::")[2]: (case.failed, case.skipped) for case in ran.cases} == {
            "test_passes": (False, None),
            "test_fails": (True, None),
            "test_cannot_begin": (True, None),
            "test_skips": (False, "no disk"),
            "test_is_expected_to_fail": (False, "some day"),
        }
