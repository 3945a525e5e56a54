"""One night in which every kind of process is killed with SIGKILL in the middle of `infer`."""

import asyncio
import contextlib
import os
import signal
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from local import hub
from local.demo import catalog
from local.environments import environment_dir
from local.stack import Stack
from nightshift.run.manifest import load_manifest
from nightshift.run.names import RunRef
from tests.chaos.nights import (
    ENVIRONMENTS,
    PARTITION,
    Night,
    kill_container,
    kill_part,
    live_pods,
    own_dags,
    process_of,
    strays,
    wait_until,
)

pytestmark = [pytest.mark.chaos, pytest.mark.gate, pytest.mark.timeout(1700)]

RUN_ID = "chaos"
LOOK_S = 0.05


def committed(night: Night, run: RunRef) -> int:
    return asyncio.run(night.committed(run, night.plan_of(run)))


def moved(night: Night, run: RunRef, before: int) -> bool:
    return committed(night, run) > before


def revived(stack: Stack, victim: str, killed: int) -> bool:
    return process_of(stack, victim) not in (None, killed)


@contextlib.contextmanager
def standing_still(stack: Stack) -> Iterator[None]:
    """Stops the drivers that live now, so that on a fast machine, too, work is left for the next kill."""
    pids = [pod["pids"]["driver"] for pod in live_pods(stack).values() if pod["pids"].get("driver")]
    tell(pids, signal.SIGSTOP)
    try:
        yield
    finally:
        tell(pids, signal.SIGCONT)


def tell(pids: list[int], number: signal.Signals) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def test_whatever_is_killed_the_night_completes_with_every_row_once(tmp_path: Path) -> None:
    hub.ensure()
    dags = own_dags(tmp_path / "dags", Path(__file__).parent / "job.yaml")
    with Stack(tmp_path / "state", dags=dags) as stack:
        night = Night(stack, "chaos-embeddings")
        packages = catalog.load(night.client, PARTITION, [environment_dir(name) for name in ENVIRONMENTS])
        night.api.wait_for_dag(night.job)
        night.trigger(RUN_ID, partition=PARTITION)
        run = night.run_of(RUN_ID)
        plan = night.plan_of(run)
        assert plan.rows == 3 * packages

        for victim in ("scheduler", "triggerer", "driver", "storage", "server", "bigquery"):
            # Progress since the last kill shows that the night had recovered from it and is at work again.
            before = committed(night, run)
            wait_until(f"progress before {victim} is killed", partial(moved, night, run, before), pause_s=LOOK_S)
            if victim in ("driver", "server"):
                kill_container(stack, victim)
                continue
            killed = kill_part(stack, victim)
            with standing_still(stack):
                # Not for its health alone: until the death is noticed, it counts as healthy.
                wait_until(f"another {victim}", partial(revived, stack, victim, killed))
                wait_until(f"the stack's health after {victim} was killed", stack.healthy)
                assert committed(night, run) < plan.chunk_count, f"the work was done before {victim} could be killed"

        night.finish(RUN_ID)

        manifest = load_manifest(night.store, run)
        assert manifest is not None
        assert manifest.rows == plan.rows == manifest.predictions + manifest.dead_letters
        [counts] = night.query(
            "SELECT COUNT(*) AS n, COUNT(DISTINCT nightshift_ordinal) AS ordinals, COUNT(DISTINCT name || version) AS packages "
            f"FROM `catalog.chaos_embeddings` WHERE partition_date = '{PARTITION}'"
        )
        assert counts == dict.fromkeys(("n", "ordinals", "packages"), manifest.predictions)
        [letters] = night.query(f"SELECT COUNT(*) AS n FROM `nightshift.dead_letters` WHERE run_id = '{run.run_id}'")
        assert letters["n"] == manifest.dead_letters
        [audited] = night.query(f"SELECT COUNT(*) AS n FROM `nightshift.audit` WHERE run_id = '{run.run_id}'")
        assert audited["n"] == 1

    assert strays(tmp_path / "state") == []
