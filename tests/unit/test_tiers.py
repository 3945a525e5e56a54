"""`make test` finds the files of each tier by the markers that they name, so a file that names none would never run."""

from __future__ import annotations

import tomllib
from collections import Counter

import pytest

from local.environments import ENVIRONMENTS, ROOT
from local.test.groups import CLUSTER, GROUPS, LONG, MODELS, TIERS, TOPS, every_file, files, group_of

pytestmark = pytest.mark.unit


def test_every_test_file_is_in_one_tier() -> None:
    found = Counter(file for tier in TIERS for file in files(tier))

    assert found == Counter(every_file())


def test_files_outside_packages_have_names_of_their_own() -> None:
    """pytest imports them by their bare names, so one run could not collect two of the same name."""
    alone = [file for file in map(ROOT.joinpath, every_file()) if not file.with_name("__init__.py").exists()]

    assert [name for name, count in Counter(file.name for file in alone).items() if count > 1] == []


def test_pytest_collects_every_test_file() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["pytest"]["ini_options"]

    assert settings["testpaths"] == list(TOPS)


def test_every_test_file_is_in_a_group_of_its_tier() -> None:
    assert {group_of(tier, file).tier for tier in TIERS for file in files(tier)} == set(TIERS)


def test_a_file_in_a_folder_that_no_group_has_is_refused() -> None:
    with pytest.raises(LookupError, match=r"tests/integration/new/test_x\.py has tests of the tier integration, and no group"):
        group_of("integration", "tests/integration/new/test_x.py")


def test_long_files_begin_first() -> None:
    long = {tier: [file for file in files(tier) if file in LONG] for tier in TIERS}

    assert [file for tier in TIERS for file in long[tier]] == list(LONG)
    assert all(files(tier)[: len(long[tier])] == long[tier] for tier in TIERS)


@pytest.mark.parametrize("tier", TIERS)
def test_the_gate_holds_tests_of_every_group(tier: str) -> None:
    """What the gate lacks is found in `make test-all` only, perhaps days later."""
    there = {group_of(tier, file).name for file in files(tier, "gate")}

    assert there == {group.name for group in GROUPS if group.tier == tier}


def test_a_group_covers_and_needs_what_there_is() -> None:
    assert [path for group in GROUPS for path in (*group.covers, *group.places) if not (ROOT / path).exists()] == []
    assert {need for group in GROUPS for need in group.needs} <= {*ENVIRONMENTS, MODELS, CLUSTER}
