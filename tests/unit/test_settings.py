"""A deployment's variables."""

from __future__ import annotations

import pytest

from nightshift.settings import Settings, SettingsError

pytestmark = pytest.mark.unit

REQUIRED = {"NIGHTSHIFT_BUCKET": "b", "NIGHTSHIFT_PROJECT": "p"}


def test_what_is_not_set_has_its_default() -> None:
    assert Settings.from_environment({**REQUIRED, "NIGHTSHIFT_NAMESPACE": ""}) == Settings("b", "p")


def test_what_is_set_counts() -> None:
    settings = Settings.from_environment({**REQUIRED, "NIGHTSHIFT_WEIGHTS": "mount", "NIGHTSHIFT_POD_PATCH": "/etc/patch.yaml"})

    assert (settings.weights, settings.pod_patch) == ("mount", "/etc/patch.yaml")


def test_the_most_workers_are_a_whole_number() -> None:
    assert Settings.from_environment({**REQUIRED, "NIGHTSHIFT_WORKERS_MAX": "20"}).workers_max == 20
    for wrong in ("many", "-1", "1.5", "²"):
        with pytest.raises(SettingsError, match=f"NIGHTSHIFT_WORKERS_MAX is '{wrong}'"):
            Settings.from_environment({**REQUIRED, "NIGHTSHIFT_WORKERS_MAX": wrong})


@pytest.mark.parametrize("missing", REQUIRED)
def test_a_required_one_is_named(missing: str) -> None:
    with pytest.raises(SettingsError, match=f"{missing} is not set"):
        Settings.from_environment({name: value for name, value in REQUIRED.items() if name != missing})


@pytest.mark.parametrize(
    ("name", "value", "choices"),
    [("IMAGE_PULL_POLICY", "always", "Always or IfNotPresent or Never"), ("WEIGHTS", "fuse", "stream or mount")],
)
def test_a_word_that_is_no_choice_is_refused(name: str, value: str, choices: str) -> None:
    with pytest.raises(SettingsError, match=f"NIGHTSHIFT_{name} is '{value}'. Write {choices}."):
        Settings.from_environment({**REQUIRED, f"NIGHTSHIFT_{name}": value})


@pytest.mark.parametrize(
    ("runtime", "folder"),
    [("local:/state", "/state"), ("local:", ""), ("kubernetes", ""), ("gke:projects/p/locations/l/clusters/c", "")],
)
def test_only_the_local_runtime_has_a_folder(runtime: str, folder: str) -> None:
    assert Settings("b", "p", runtime=runtime).local_folder == folder


class TestAccounts:
    def test_all_jobs_share_one_or_each_has_its_own(self) -> None:
        assert Settings("b", "p").account_of("notes") == "nightshift-worker"
        own = Settings.from_environment({**REQUIRED, "NIGHTSHIFT_SERVICE_ACCOUNT": "nightshift-{job}"})
        assert (own.account_of("notes"), own.account_of("a-b")) == ("nightshift-notes", "nightshift-a-b")

    @pytest.mark.parametrize(
        "value", ["{jobs}", "{job", "Nightshift-{job}", "-{job}", "a/{job}", "{job}.", "a b", "{partition}"]
    )
    def test_a_name_that_kubernetes_refuses_is_refused(self, value: str) -> None:
        with pytest.raises(SettingsError, match=r"NIGHTSHIFT_SERVICE_ACCOUNT is .*nightshift-\{job\}"):
            Settings.from_environment({**REQUIRED, "NIGHTSHIFT_SERVICE_ACCOUNT": value})
