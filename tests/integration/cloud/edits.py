"""Ways to change a page before it is followed, and what became of it."""

from __future__ import annotations

import re
from typing import Final

from local.google_cloud.cloud import Cloud, new_project, without_default_network
from local.google_cloud.night import outcomes
from local.google_cloud.shell import Walk
from tests.integration.cloud.pages import PROJECT, Edit

OTHER: Final = "my-cluster-project"


def swap(before: str, after: str) -> Edit:
    """A change that must find what it changes."""

    def edit(text: str) -> str:
        assert before in text, before
        return text.replace(before, after)

    return edit


def in_some(before: str, after: str) -> Edit:
    """The same in files of which only some have it."""
    return lambda text: text.replace(before, after)


def without(pattern: str) -> Edit:
    def edit(text: str) -> str:
        found, count = re.subn(pattern, "", text, flags=re.MULTILINE)
        assert count, pattern
        return found

    return edit


def two_projects(page: str) -> str:
    return swap("export CLUSTER_PROJECT=$PROJECT_ID ", f"export CLUSTER_PROJECT={OTHER} ")(page)


def second_project(cloud: Cloud) -> None:
    new_project(cloud.state, OTHER, 210987654321)


def no_spot_in_one_zone(cloud: Cloud) -> None:
    cloud.sold_out.add(("europe-west4-b", "g2-standard-8", "spot"))


def mounted(page: str) -> str:
    """A night whose pods mount their model from a bucket."""
    return swap(
        "NIGHTSHIFT_PRIORITY_CLASS=nightshift-batch", "NIGHTSHIFT_PRIORITY_CLASS=nightshift-batch,NIGHTSHIFT_WEIGHTS=mount"
    )(page)


def model_in_bucket(job: str) -> str:
    in_bucket = re.sub("uri: hf://.*", "uri: gs://my-project-nightshift/models/minilm", job)
    return re.sub("revision: .*", 'revision: "1"', in_bucket)


def no_network(cloud: Cloud) -> None:
    without_default_network(cloud.state, PROJECT)


def result(walk: Walk) -> str:
    """Why the walk did not reach its end; '' if it did."""
    if walk.code:
        return walk.error
    return "".join(outcomes(walk.cloud.state).values())
