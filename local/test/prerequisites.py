"""What this machine lacks for which tests. Makes what is missing if it can; otherwise prints why and continues."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Final

from local import environments, models
from local.cluster import build, packages
from local.environments import ROOT, SetupError, python_of
from local.test.groups import CLUSTER, MODELS

LOWLY: Final = ("nice", "-n", "19")
NAMED_CLUSTER: Final = "NIGHTSHIFT_CLUSTER"
"""Set to the state folder of a cluster that is already up (`make cluster-up`). `local.cluster.cluster` has it as
STATE_VARIABLE, which cannot be imported here: this runs before any package is installed."""

Say = Callable[[str], None]


class Prerequisites:
    """Which of the tests' needs could be met. lacking: need -> why it is missing, a sentence without its full stop.

    everything: for all tests, not only those of `make test`.
    """

    def __init__(self, say: Say, *, everything: bool) -> None:
        self._say = say
        self._everything = everything
        self.lacking: dict[str, str] = {}
        self._beside = ThreadPoolExecutor(1)
        self._building: Future[None] | None = None
        self._no_cluster = ""

    def prepare(self, needs: Iterable[str]) -> None:
        """Makes environments and models, and starts building the cluster's programs, which continues during the first tests."""
        wanted = set(needs)
        for name in environments.ENVIRONMENTS:
            if name in wanted:
                self._make(name, partial(environments.ensure, name), f"the environment '{name}' could not be made")
        if MODELS in wanted:
            if "server" in self.lacking:
                self.lacking[MODELS] = self.lacking["server"]
            else:
                self._make(MODELS, _make_models, "the models could not be made")
        if CLUSTER in wanted and NAMED_CLUSTER not in os.environ:
            self._prepare_cluster()

    @property
    def own_cluster(self) -> bool:
        """Whether the tests start their own cluster: not if one is named, by its folder or by KUBECONFIG."""
        return NAMED_CLUSTER not in os.environ and not self._no_cluster

    def wait_for_cluster(self) -> None:
        """Waits until the cluster's programs are built, or it is known why they cannot be."""
        if self._building:
            self._building.result()

    def lacks(self, needs: Iterable[str]) -> str | None:
        """Why tests with these needs cannot run here, or None."""
        return next((self.lacking[need] for need in sorted(needs) if need in self.lacking), None)

    def environment(self) -> dict[str, str]:
        """What the tests must know about this."""
        reason = {packages.NO_CLUSTER_VARIABLE: self._no_cluster} if self._no_cluster else {}
        return {**os.environ, **reason, "PYTHONDONTWRITEBYTECODE": "1"}

    def _prepare_cluster(self) -> None:
        if reason := packages.obstacle() or build.obstacle():
            self._without_cluster(reason)
            return
        try:
            packages.ensure(self._say)
        except packages.Unsupported as error:
            self._say(str(error))
            self._without_cluster("the test cluster's packages could not be installed (why is said above)")
            return
        if not build.built(build.EVERYTHING if self._everything else build.MODULES):
            self._building = self._beside.submit(self._build)

    def _without_cluster(self, reason: str) -> None:
        self._no_cluster = reason
        if "KUBECONFIG" not in os.environ:
            self._note(CLUSTER, reason)

    def _build(self) -> None:
        # Up to twenty minutes on two cores, the first time: the tests that run meanwhile have priority.
        command = [*LOWLY, str(python_of("test")), "-m", "local.cluster", "build", *(["--all"] if self._everything else [])]
        self._say(
            "building the test cluster's programs beside the first tests: 15 to 25 minutes on two cores, once per machine"
        )
        done = subprocess.run(command, cwd=ROOT, check=False, stdin=subprocess.DEVNULL, capture_output=True, text=True)
        if done.returncode:
            self._say(done.stderr.strip()[-2000:])
            if not build.built():
                self._without_cluster("the test cluster's programs could not be built (why is said above)")

    def _make(self, need: str, make: Callable[[], object], failure: str) -> None:
        try:
            make()
        except (SetupError, models.ModelFailed, OSError) as error:
            self._say(str(error))
            self._note(need, f"{failure} (why is said above)")

    def _note(self, need: str, reason: str) -> None:
        self.lacking[need] = reason
        self._say(f"{reason}: the tests that need it are left out")


def _make_models() -> None:
    for name in models.MADE_HERE:
        models.ensure(name)
