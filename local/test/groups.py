"""The groups of tests: what each one tests, what it needs from the machine, and its time budget. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Literal

from local.environments import ROOT

TIERS: Final = ("unit", "simulation", "integration", "cluster", "chaos")
"""In the order in which they are reported, and run if none runs beside another (`local.test.__main__`).

Each is a pytest marker, and each test file names exactly one."""
GATE: Final = "gate"
"""Marks what `make test` runs of a tier; of WHOLE_TIERS it runs everything."""
WHOLE_TIERS: Final = frozenset({"unit"})

TOPS: Final = ("tests", "local")
"""The folders with test files: what is in ``local`` has its tests beside it, in a folder ``tests``."""

LONG: Final = (
    "tests/integration/warehouse/test_deleted_in_part.py",
    "tests/integration/stack/test_stack_files.py",
    "tests/integration/warehouse/test_redo_night.py",
    "tests/integration/warehouse/test_races.py",
    "tests/integration/warehouse/test_publish.py",
    "tests/integration/stack/test_stack_airflow.py",
    "tests/integration/stack/test_smoke_night.py",
    "tests/integration/package/test_composer_versions.py",
    "tests/chaos/test_demo.py",
    "tests/chaos/test_kills.py",
    "tests/chaos/test_backfill.py",
)
"""Files that take minutes. They begin first in their tier: else one worker is still at its last file when the others have long
ended."""

MODELS: Final = "models"
CLUSTER: Final = "cluster"
"""What a group may need besides environments."""


@dataclass(frozen=True)
class Group:
    """The tests of one tier below some paths.

    places: paths of folders or files below the repository's root; if several groups match, the longest one counts.
    covers: what it tests, as paths. needs: environments (`local.environments`), MODELS, CLUSTER.
    gate_s, all_s: the budgets of `make test` and `make test-all`, the seconds of its tests added up: tests that run in
        parallel each count in full, with the time that they wait for a core. They were recorded on two cores; a run prints
        the actual time beside them.
    """

    name: str
    tier: str
    places: tuple[str, ...]
    covers: tuple[str, ...]
    needs: frozenset[str]
    gate_s: int
    all_s: int


def _group(name: str, places: str, covers: str, needs: str, gate_s: int, all_s: int) -> Group:
    """name: TIER or TIER/PART. places, covers, needs: separated by spaces."""
    return Group(
        name, name.partition("/")[0], tuple(places.split()), tuple(covers.split()), frozenset(needs.split()), gate_s, all_s
    )


GROUPS: Final = (
    _group("unit", "tests local", "plugins/nightshift local tests dags docs monitoring", "test driver", 120, 120),
    _group(
        "simulation",
        "tests/simulation",
        "plugins/nightshift/run plugins/nightshift/driver plugins/nightshift/stream plugins/nightshift/warehouse",
        "test",
        500,
        1400,
    ),
    _group("integration/airflow", "tests/integration/airflow", "dags plugins/nightshift/operators", "test emulators", 90, 160),
    _group("integration/bigquery", "local/bigquery/tests", "local/bigquery local/smoke", "test emulators", 280, 460),
    _group("integration/chaos", "tests/chaos", "tests/chaos/proxy.py", "test emulators", 10, 10),
    _group(
        "integration/cloud",
        "tests/integration/cloud",
        "k8s/README.md local/composer_commands.txt local/google_cloud",
        "test",
        60,
        60,
    ),
    _group(
        "integration/doctor",
        "tests/integration/doctor",
        "plugins/nightshift/doctor plugins/nightshift/operators plugins/nightshift/hooks",
        "test emulators",
        30,
        140,
    ),
    _group(
        "integration/driver",
        "tests/integration/driver",
        "plugins/nightshift/driver plugins/nightshift/batch plugins/nightshift/trial plugins/nightshift/tasks",
        "test driver emulators server models",
        740,
        2450,
    ),
    _group(
        "integration/composer",
        "tests/integration/package/test_composer_versions.py",
        "plugins/nightshift/operators plugins/nightshift/triggers plugins/nightshift/hooks dags",
        "test composer emulators",
        30,
        270,
    ),
    # The gate checks infra/ against the schema in `tests/unit/test_infra.py`: OpenTofu is built in five minutes.
    _group("integration/infra", "tests/integration/infra", "infra local/terraform", "test", 1, 150),
    _group("integration/monitoring", "tests/integration/monitoring", "monitoring", "test emulators server models", 20, 300),
    _group(
        "integration/package",
        "tests/integration/package",
        "pyproject.toml local/package.py local/command.py plugins/nightshift/cli plugins/nightshift/plugin/__init__.py "
        "plugins/nightshift/provider.py",
        "test airflow driver lowest",
        110,
        120,
    ),
    _group("integration/pages", "tests/integration/pages", "plugins/nightshift/plugin", "test composer emulators", 60, 200),
    _group("integration/postgres", "local/postgres/tests", "local/postgres", "test emulators", 30, 60),
    _group("integration/pubsub", "local/pubsub/tests", "local/pubsub", "test emulators", 50, 150),
    _group(
        "integration/runtime",
        "local/runtime/tests tests/integration/runtime",
        "local/runtime plugins/nightshift/jobset/kubernetes",
        "test",
        60,
        180,
    ),
    _group(
        "integration/stack",
        "tests/integration/stack",
        "local/stack local/demo local/smoke local/stream_demo",
        "test driver stream airflow emulators server models",
        250,
        1160,
    ),
    _group(
        "integration/status", "tests/integration/test_status.py", "plugins/nightshift/status", "test driver emulators", 40, 60
    ),
    _group(
        "integration/stream",
        "tests/integration/stream",
        "plugins/nightshift/stream plugins/nightshift/batcher plugins/nightshift/status",
        "test emulators",
        190,
        1140,
    ),
    _group("integration/storage", "local/storage/tests", "local/storage", "test emulators", 90, 190),
    _group(
        "integration/warehouse",
        "tests/integration/warehouse",
        "plugins/nightshift/warehouse plugins/nightshift/operators local/bigquery",
        "test emulators",
        520,
        2460,
    ),
    _group(
        "cluster",
        "tests/cluster",
        "plugins/nightshift/jobset plugins/nightshift/stream/manifests plugins/nightshift/triggers "
        "plugins/nightshift/operators k8s local/cluster",
        "test driver airflow emulators server models cluster",
        960,
        3000,
    ),
    _group(
        "chaos",
        "tests/chaos",
        "plugins/nightshift/driver plugins/nightshift/operators local/stack local/demo",
        "test driver airflow emulators server models",
        310,
        1390,
    ),
)


def groups_of(tiers: Iterable[str]) -> tuple[Group, ...]:
    wanted = set(tiers)
    return tuple(group for group in GROUPS if group.tier in wanted)


def group_of(tier: str, path: str) -> Group:
    """The group of a test file, given by its path below the root. Raises LookupError if no group has it."""
    found = {
        place: group for group in groups_of([tier]) for place in group.places if path == place or path.startswith(f"{place}/")
    }
    if not found:
        raise LookupError(f"{path} has tests of the tier {tier}, and no group in {__name__} has that folder. Add one.")
    return found[max(found, key=len)]


Part = Literal["gate", "rest", "all"]
"""Of a tier: what `make test` runs, what only `make test-all` runs, or both."""


def every_file() -> list[str]:
    """Every test file, as a path below the root, sorted."""
    return sorted(str(file.relative_to(ROOT)) for top in TOPS for file in (ROOT / top).rglob("test_*.py"))


def files(tier: str, part: Part = "all") -> list[str]:
    """The files with tests of a part of a tier, as paths below the root, in running order. Of "rest", some may have none.

    pytest gets them by name: otherwise it would have to import a file to find that it has no test of the tier.
    """
    marks = [f"pytest.mark.{tier}"]
    if part == "gate" and tier not in WHOLE_TIERS:
        marks.append(f"pytest.mark.{GATE}")
    every = ((file, (ROOT / file).read_text()) for file in every_file())
    found = [file for file, text in every if all(mark in text for mark in marks)]
    return sorted(found, key=lambda path: LONG.index(path) if path in LONG else len(LONG))


def expression(tier: str, part: Part) -> str:
    """pytest's `-m` for a part of a tier."""
    if part == "all" or tier in WHOLE_TIERS:
        return tier
    return f"{tier} and {GATE}" if part == "gate" else f"{tier} and not {GATE}"
