"""Whether Airflow sees nightshift: its plugin and its provider here, its triggers in the triggerer.

A task runs in a worker, which loads plugins and providers from the same entry points as scheduler, DAG processor and API server
do. A task cannot see into those; each has the package exactly if it was installed there.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Final

from nightshift import DISTRIBUTION, __version__
from nightshift.doctor import fixes
from nightshift.doctor.context import Surroundings
from nightshift.doctor.findings import Failed, Finding, Ok, Skipped

AIRFLOW: Final = "airflow"
PLUGIN: Final = "plugin"
PROVIDER: Final = "provider"
TRIGGERER: Final = "triggerer"
PACKAGE: Final = "nightshift"


def airflow(here: Surroundings) -> Iterator[Finding]:
    """Whether this process has Airflow at all. Raises ImportError if it has not."""
    yield Ok(AIRFLOW, f"Airflow {here.connections.components().airflow}")


def plugin(here: Surroundings) -> Iterator[Finding]:
    seen = here.connections.components()
    breaks = "the link to a run's folder"
    ours = {source: words for source, words in seen.plugin_errors.items() if PACKAGE in source or PACKAGE in words}
    if PACKAGE in seen.plugins and not ours:
        yield Ok(PLUGIN, f"{PACKAGE}, from {seen.plugins[PACKAGE]}")
    elif ours:
        wrong = "; ".join(f"{source} cannot be loaded: {words}" for source, words in ours.items())
        yield Failed(PLUGIN, wrong, breaks, "airflow plugins --verbose")
    else:
        wrong = f"Airflow does not list the plugin {PACKAGE!r} here, so the package is not installed (or only on the path)"
        yield Failed(PLUGIN, wrong, breaks, fixes.PACKAGE)


def provider(here: Surroundings) -> Iterator[Finding]:
    version = here.connections.components().providers.get(DISTRIBUTION)
    breaks = "tasks and triggers of another release than the DAGs, or none at all"
    if version is None:
        wrong = (
            f"Airflow does not list the provider {DISTRIBUTION!r} here, so the package is not installed (or only on the path)"
        )
        yield Failed(PROVIDER, wrong, breaks, fixes.PACKAGE)
    elif version != __version__:
        wrong = f"the package says {version}, but the code that runs is {__version__}: another copy comes first on the path"
        yield Failed(PROVIDER, wrong, breaks, fixes.PACKAGE)
    else:
        yield Ok(PROVIDER, f"{DISTRIBUTION} {version}")


def triggerer(here: Surroundings) -> Iterator[Finding]:
    answer = here.triggerer
    breaks = "extract, infer and publish: each waits in the triggerer"
    if answer is None:
        yield Skipped(TRIGGERER, "only a task can wait in it: trigger the DAG nightshift_doctor")
    elif answer.problem:
        yield Failed(TRIGGERER, f"it did not run nightshift's trigger: {answer.problem}", breaks, fixes.PACKAGE)
    elif answer.version != __version__:
        wrong = f"it runs nightshift {answer.version}, and this worker {__version__}"
        yield Failed(TRIGGERER, wrong, breaks, fixes.PACKAGE)
    elif different := _different(here):
        name, value = next(iter(different.items()))
        wrong = f"{', '.join(different)} is set differently there than for this worker"
        yield Failed(TRIGGERER, wrong, breaks, fixes.setting(name, value))
    else:
        yield Ok(TRIGGERER, f"ran a trigger of nightshift {answer.version}, with this worker's settings")


def _different(here: Surroundings) -> dict[str, str]:
    """The variables that the triggerer has not as this worker has them, with this worker's values."""
    theirs = (here.triggerer and here.triggerer.settings) or {}
    return {
        f"NIGHTSHIFT_{name.upper()}": str(value) for name, value in asdict(here.settings).items() if theirs.get(name) != value
    }
