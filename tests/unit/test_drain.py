"""The seconds of a drain."""

from __future__ import annotations

import itertools

import pytest

from nightshift.driver import drain
from nightshift.jobset.manifest.constants import GRACE_SECONDS

pytestmark = pytest.mark.unit


def test_the_steps_of_a_drain_fit_into_what_a_spot_machine_leaves_a_pod() -> None:
    steps = [0, drain.DRAIN_IN_FLIGHT_S, drain.DRAIN_SAVED_S, drain.DRAIN_LIMIT_S, drain.SPOT_S]

    assert drain.SPOT_S == 15
    assert drain.SPOT_S <= GRACE_SECONDS, "Kubernetes must not end the pod before"
    assert all(later - sooner >= 1 for sooner, later in itertools.pairwise(steps)), "each step has time of its own"
