"""``python3 -m local.test``: see the package.

Exit codes: 0; 1 if something failed, or was required and did not run; 2 for a wrong command line.
"""

from __future__ import annotations

import argparse
import secrets
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from local.test import report, running, unchanged
from local.test.groups import CLUSTER, TIERS, Group, groups_of
from local.test.prerequisites import Prerequisites

ALL: Final = "all"
SCHEDULES: Final = 2500
"""Random seeds of the simulation, in `make test-all`."""


def _seeds() -> str:
    first = secrets.randbelow(1 << 40)
    return f"{first}:{first + SCHEDULES}"


RANDOM: Final[Mapping[str, tuple[str, Callable[[], str]]]] = {
    "simulation": ("NIGHTSHIFT_SEEDS", _seeds),
    "chaos": ("NIGHTSHIFT_CHAOS_SEED", lambda: str(secrets.randbelow(1 << 31))),
}
"""Tier -> the variable from which its random seeds are read, and what draws them."""


def main(arguments: Sequence[str]) -> int:
    options = _options(arguments)
    gate = not options.all
    tiers = tuple(tier for tier in TIERS if not options.tier or tier in options.tier)
    required = TIERS if ALL in options.require else tuple(options.require)
    groups = groups_of(tiers)
    prerequisites = Prerequisites(lambda line: print(f"[test] {line}", flush=True))
    prerequisites.prepare({need for group in groups for need in group.needs})
    if reason := prerequisites.lacks({"test"}):
        print(f"No test can run here: {reason}.", file=sys.stderr)
        return 1
    failed = [] if options.tier else running.failed_checks()
    ran: dict[str, running.Ran] = {}
    not_run: dict[str, str] = {}
    unchanged_tiers: list[str] = []
    for tier in tiers:
        # Arguments select tests, so the result is not that of the whole tier.
        key = unchanged.key_of(tier) if gate and not options.rest else None
        if key and unchanged.has_passed(tier, key):
            print(f"== {tier}: not run again, it has passed here with the same inputs (key {key})", flush=True)
            unchanged_tiers.append(tier)
            continue
        able = _able(prerequisites, groups_of([tier]), not_run)
        if able:
            ran[tier] = _run(prerequisites, tier, able, gate=gate, arguments=options.rest)
            if key and ran[tier].ok:
                unchanged.note_passed(tier, key)
    report.print_report(ran, not_run, gate=gate)
    failed += [tier for tier, each in ran.items() if not each.ok]
    lines = report.missing(ran, not_run, [tier for tier in required if tier not in unchanged_tiers])
    if report.nothing(ran):
        lines.append("no test ran: check the arguments after --")
    print("\n".join([*lines, f"failed: {', '.join(failed)}" if failed else "everything that ran passed"]))
    return 1 if failed or lines else 0


def _options(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python3 -m local.test", description="Runs the tests that this machine can run.")
    parser.add_argument("--all", action="store_true", help="all tests, with random seeds, not only those of `make test`")
    parser.add_argument(
        "--tier", action="append", choices=TIERS, help="only this tier, without style and types; may be repeated"
    )
    parser.add_argument(
        "--require",
        action="append",
        default=[],
        choices=[*TIERS, ALL],
        help="fail if tests of this tier cannot run here or are skipped; may be repeated",
    )
    parser.add_argument("rest", nargs="*", metavar="PYTEST ARGUMENTS", help="after --")
    return parser.parse_args(arguments)


def _able(prerequisites: Prerequisites, groups: Sequence[Group], not_run: dict[str, str]) -> list[Group]:
    """The groups that can run here; notes why the others cannot."""
    able = []
    for group in groups:
        if CLUSTER in group.needs:
            prerequisites.wait_for_cluster()
        if reason := prerequisites.lacks(group.needs):
            not_run[group.name] = reason
        else:
            able.append(group)
    return able


def _run(
    prerequisites: Prerequisites, tier: str, groups: Sequence[Group], *, gate: bool, arguments: Sequence[str]
) -> running.Ran:
    environment = prerequisites.environment()
    if not gate and tier in RANDOM:
        # New ones each time; printed here, since a worker's own output is not shown.
        variable, draw = RANDOM[tier]
        print(f"{variable}={environment.setdefault(variable, draw())}", flush=True)
    cluster = any(CLUSTER in group.needs for group in groups) and prerequisites.own_cluster
    return running.run_tier(tier, groups, gate=gate, environment=environment, cluster=cluster, arguments=arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
