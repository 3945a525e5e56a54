"""``python3 -m local.test``: see the package.

Exit codes: 0; 1 if something failed, or was required and did not run; 2 for a wrong command line.
"""

from __future__ import annotations

import argparse
import secrets
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Final

from local.test import report, running, unchanged
from local.test.groups import CLUSTER, TIERS, Group, Part, groups_of
from local.test.prerequisites import Prerequisites
from local.test.progress import Ran

ALL: Final = "all"
RANDOM: Final[Mapping[str, tuple[str, Callable[[], str]]]] = {
    "simulation": ("NIGHTSHIFT_SEEDS", lambda: str(secrets.randbelow(1 << 40))),
    "chaos": ("NIGHTSHIFT_CHAOS_SEED", lambda: str(secrets.randbelow(1 << 31))),
}
"""Tier -> the variable from which its random seeds are read, and what draws them."""
HOST: Final = "cluster"
"""The tier beside which others run: its tests mostly wait."""
BESIDE: Final[Mapping[str, int]] = {"simulation": 19, "integration": 5}
"""Tier -> its `nice` while it runs beside HOST. The simulation takes what is left: it only computes, in virtual time.

Integration tests give way to HOST's, which measure time, but have limits of their own."""


def main(arguments: Sequence[str]) -> int:
    began = time.monotonic()
    options = _options(arguments)
    gate = not options.all
    tiers = tuple(tier for tier in TIERS if not options.tier or tier in options.tier)
    required = TIERS if ALL in options.require else tuple(options.require)
    groups = groups_of(tiers)
    prerequisites = Prerequisites(lambda line: print(f"[test] {line}", flush=True), everything=options.all)
    prerequisites.prepare({need for group in groups for need in group.needs})
    if reason := prerequisites.lacks({"test"}):
        print(f"No test can run here: {reason}.", file=sys.stderr)
        return 1
    failed = [] if options.tier else running.failed_checks()
    tests = Tests(prerequisites, gate=gate, arguments=options.rest)
    beside = {tier: nice for tier, nice in BESIDE.items() if HOST in tiers and tier in tiers}
    for tier in tiers:
        if tier not in beside:
            tests.run(tier, beside=beside if tier == HOST else {})
    ran = {tier: tests.ran[tier] for tier in tiers if tier in tests.ran}
    report.print_report(ran, tests.not_run)
    failed += [tier for tier, each in ran.items() if not each.ok]
    lacking = report.missing(ran, tests.not_run, [tier for tier in required if tier not in tests.unchanged])
    if report.nothing(ran):
        lacking.append("no test ran: check the arguments after --")
    lines = [*lacking, f"{(time.monotonic() - began) / 60:.1f} minutes in all"]
    print("\n".join([*lines, f"failed: {', '.join(failed)}" if failed else "everything that ran passed"]))
    return 1 if failed or lacking else 0


@dataclass
class Tests:
    """What is run, and what came of it. ran: by tier. not_run: group -> why. unchanged: tiers that need not run again."""

    prerequisites: Prerequisites
    gate: bool
    arguments: Sequence[str]
    ran: dict[str, Ran] = field(default_factory=dict)
    not_run: dict[str, str] = field(default_factory=dict)
    unchanged: list[str] = field(default_factory=list)

    def run(self, tier: str, *, beside: Mapping[str, int]) -> None:
        """Runs a tier. beside: the tiers to run meanwhile, and the `nice` of each."""
        with ThreadPoolExecutor() as pool:
            others = [pool.submit(self._run, other, nice=nice) for other, nice in beside.items()]
            self._run(tier)
        for other in others:
            other.result()

    def _run(self, tier: str, *, nice: int | None = None) -> None:
        # Arguments select tests, so the result is not that of the whole tier.
        key = None if self.arguments else unchanged.key_of(tier)
        part: Part = "gate" if self.gate else "all"
        if key and unchanged.has_passed(tier, key):
            what = tier if self.gate else f"{tier}, with fixed seeds"
            print(f"== {what}: not run again, it has passed here with the same inputs (key {key})", flush=True)
            if self.gate:
                self.unchanged.append(tier)
                return
            part = "rest"
        groups = self._able(tier)
        # Before they run: a file that is changed meanwhile has not passed.
        keys = {}
        if self.gate and not self.arguments:
            keys = {group: found for group in groups if (found := unchanged.key_of_group(group)) is not None}
        for group in [group for group, found in keys.items() if unchanged.has_passed(group.name, found)]:
            print(f"== {group.name}: not run again, it has passed here with the same inputs", flush=True)
            groups.remove(group)
        if not groups:
            return
        environment = self.prerequisites.environment()
        if not self.gate and tier in RANDOM:
            # New ones each time; printed here, since a worker's own output is not shown.
            variable, draw = RANDOM[tier]
            print(f"{variable}={environment.setdefault(variable, draw())}", flush=True)
        self.ran[tier] = running.run_tier(
            tier,
            groups,
            part=part,
            environment=environment,
            cluster=any(CLUSTER in group.needs for group in groups) and self.prerequisites.own_cluster,
            arguments=self.arguments,
            nice=nice,
        )
        if key and self.ran[tier].ok:
            unchanged.note_passed(tier, key)
        for group in groups:
            if group in keys and self.ran[tier].whole(group):
                unchanged.note_passed(group.name, keys[group])

    def _able(self, tier: str) -> list[Group]:
        """The groups that can run here; notes why the others cannot."""
        able = []
        for group in groups_of([tier]):
            if CLUSTER in group.needs:
                self.prerequisites.wait_for_cluster()
            if reason := self.prerequisites.lacks(group.needs):
                self.not_run[group.name] = reason
            else:
                able.append(group)
        return able


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


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
