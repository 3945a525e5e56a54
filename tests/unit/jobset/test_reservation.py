"""The reservation that a worker's machines come from: its name is the deployment's, and a profile alone asks for it."""

from __future__ import annotations

import pytest

from nightshift.jobset.manifest import reservation
from nightshift.jobset.manifest.render import render
from nightshift.profiles import PROFILES, Provisioning, Span, fit
from nightshift.settings import Settings, SettingsError, reservations_of
from tests.builders import RESERVATIONS, RUN, a_plan, a_spec

pytestmark = pytest.mark.unit

H200 = fit(PROFILES["gpu-h200-reservation"], Span(tensor_parallel=8))


def deployed(reservations: str = "", **settings: str) -> Settings:
    return Settings("b", "p", reservations=reservations, **settings)  # type: ignore[arg-type]


def test_pods_select_the_reservation_of_their_machine() -> None:
    """The labels of Google's page "Consume reserved zonal resources"."""
    own = reservation.selector(H200, deployed("a3-highgpu-8g=days,a3-ultragpu-8g=nights"))
    shared = reservation.selector(H200, deployed("a3-ultragpu-8g=projects/example.com:ml/reservations/nights"))

    assert own == {"cloud.google.com/reservation-name": "nights", "cloud.google.com/reservation-affinity": "specific"}
    assert shared == {**own, "cloud.google.com/reservation-project": "example.com:ml"}


@pytest.mark.parametrize("profile", PROFILES)
def test_no_other_profile_selects_one(profile: str) -> None:
    spec = a_spec(compute__profile=profile)
    rendered = render(spec, RUN, a_plan(8), deployed(RESERVATIONS), name="n")
    pod = rendered["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]
    selected = [name for name in pod.get("nodeSelector", {}) if "reservation" in name]

    assert bool(selected) == (PROFILES[profile].provisioning is Provisioning.RESERVATION)


@pytest.mark.parametrize(
    ("value", "named"), [("", "is not set"), ("a3-highgpu-8g=days,g2-standard-8=l4", "names only a3-highgpu-8g, g2-standard-8")]
)
def test_a_machine_without_a_reservation_is_refused(value: str, named: str) -> None:
    words = (
        f"The profile gpu-h200-reservation needs a reservation of a3-ultragpu-8g, but NIGHTSHIFT_RESERVATIONS {named}. Add "
        "a3-ultragpu-8g=NAME of the reservation to it"
    )
    with pytest.raises(SettingsError, match=words):
        reservation.selector(H200, deployed(value))
    spec = a_spec(compute={"profile": "gpu-h200-spot", "fallback": ["gpu-h200-reservation"]})
    with pytest.raises(SettingsError, match=words):
        reservation.check(spec, deployed(value))
    reservation.check(spec, deployed("a3-ultragpu-8g=nights"))


@pytest.mark.parametrize(
    ("value", "why"),
    [
        ("nights", "has 'nights'"),
        ("a3-ultragpu-8g=", "has 'a3-ultragpu-8g='"),
        ("a3-ultragpu-8g=Nights", "has 'a3-ultragpu-8g=Nights'"),
        ("a3-ultragpu-8g=projects/p/nights", "has 'a3-ultragpu-8g=projects/p/nights'"),
        ("a3-ultragpu-8g=a, a3-ultragpu-8g=b", "names a machine twice"),
    ],
)
def test_a_wrong_setting_is_refused_with_the_right_form(value: str, why: str) -> None:
    with pytest.raises(SettingsError, match=f"NIGHTSHIFT_RESERVATIONS {why}. Write MACHINE=NAME"):
        Settings.from_environment({"NIGHTSHIFT_BUCKET": "b", "NIGHTSHIFT_PROJECT": "p", "NIGHTSHIFT_RESERVATIONS": value})


def test_spaces_between_them_do_not_matter() -> None:
    assert reservations_of(" g2-standard-8=l4 , a3-ultragpu-8g=projects/acme/reservations/h200 ") == {
        "g2-standard-8": ("", "l4"),
        "a3-ultragpu-8g": ("acme", "h200"),
    }
