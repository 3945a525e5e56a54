"""The JobSet that a night would submit, without a network and without a run: ``nightshift render`` of a job."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from nightshift.cli.given import partition_of
from nightshift.fields.arguments import flag, option, positive
from nightshift.fields.text import n
from nightshift.jobset.identity import digest_name
from nightshift.jobset.manifest.constants import Role
from nightshift.jobset.manifest.render import render
from nightshift.jobset.manifest.yaml_text import to_yaml
from nightshift.planner.model import model_of_size
from nightshift.planner.plan import Decision, fixed, weigh
from nightshift.planner.speed import Known, tokens_of
from nightshift.profiles.limits import Limits
from nightshift.run.names import RunRef, run_digest
from nightshift.run.plan import InputFile, Plan
from nightshift.settings import Settings
from nightshift.spec import JobSpec, load, profile_names

ROWS: Final = 1_000_000
TASK: Final = "infer"
"""The DAG's task that submits the JobSet; its name is part of the JobSet's."""
PLACEHOLDERS: Final = {"NIGHTSHIFT_BUCKET": "BUCKET", "NIGHTSHIFT_PROJECT": "PROJECT"}
"""What stands for the variables without which no deployment works. A JobSet says nothing of the project."""

GROUP: Final = "jobs"


def _profile(text: str) -> str:
    if found := profile_names.unknown(text):
        raise argparse.ArgumentTypeError(". ".join(found))
    return text


@dataclass(frozen=True)
class JobOptions:
    """rows, workers, profile: None for what the job and the planner say. rows are `ROWS` then."""

    file: Path = option(type=Path, metavar="FILE", help="the YAML file of a job or a stream")
    partition: str | None = option(
        "--partition",
        group=GROUP,
        metavar="DATE",
        help="the day of the run, for example 2026-11-20, or the start of its period, 2026-11-20T07:10; required",
    )
    rows: int | None = option(
        "--rows", group=GROUP, type=positive, metavar="N", help="rows of the run; workers are planned from them"
    )
    profile: str | None = option(
        "--profile", group=GROUP, type=_profile, metavar="P", help="use this compute profile instead of the job's"
    )
    workers: int | None = option(
        "--workers", group=GROUP, type=positive, metavar="N", help="use N workers instead of the planned number"
    )
    helper: bool = flag("--helper", "print the additional JobSet that helps a run on a fallback profile", GROUP)


def preview(options: JobOptions, environment: Mapping[str, str]) -> str:
    """The manifest, below comments that say what it was made from. Raises what `load`, the settings and `render` raise."""
    spec = load(options.file)
    missing = {name: value for name, value in PLACEHOLDERS.items() if not environment.get(name)}
    settings = Settings.from_environment({**environment, **missing})
    partition = partition_of(spec, options.partition)
    run = RunRef(spec.job, partition, run_digest(spec.job, partition, spec.semantic()))
    rows = ROWS if options.rows is None else options.rows
    decision, problems = _decided(options, spec, rows, settings)
    plan = _plan(run, rows, spec, decision)
    role: Role = "helper" if options.helper else "owner"
    manifest = render(
        spec,
        run,
        plan,
        settings,
        name=digest_name(spec.job, spec.job, TASK, run.prefix, 2 if options.helper else 1),
        profile=options.profile,
        role=role,
        workers=options.workers,
        hints=decision.hints,
    )
    return f"{_header(options, spec, run, plan, settings, missing, problems)}{to_yaml(manifest)}"


def _decided(options: JobOptions, spec: JobSpec, rows: int, settings: Settings) -> tuple[Decision, tuple[str, ...]]:
    """What the planner says without asking anybody for the model: from what the job states; and what is wrong with it."""
    if options.workers is not None:
        spec = spec.model_copy(update={"compute": spec.compute.model_copy(update={"workers": options.workers})})
    gib = spec.compute.weights_gib
    known = Known(
        tokens_of(spec),
        model_of_size(gib << 30, spec.engine.dtype) if gib else None,
        "the model was not looked up; `nightshift plan` does that",
    )
    return weigh(spec, rows, known, Limits(settings.workers_max))[1:]


def _plan(run: RunRef, rows: int, spec: JobSpec, decision: Decision) -> Plan:
    files = (InputFile("inputs/preview.parquet", rows, (rows,), 0, ""),) if rows else ()
    workers, chunk_rows, reasons = fixed(decision, spec, rows, 0)
    return Plan(run.run_id, rows, chunk_rows, workers, files, reasons)


def _header(
    options: JobOptions,
    spec: JobSpec,
    run: RunRef,
    plan: Plan,
    settings: Settings,
    missing: Mapping[str, str],
    problems: Sequence[str],
) -> str:
    assumed = f"{ROWS:,} rows, assumed: pass --rows" if options.rows is None else n(options.rows, "row")
    why = f"{n(options.workers, 'worker')}: --workers says so" if options.workers else "; ".join(plan.reasons)
    lines = [
        f"Rendered by `nightshift render` from {options.file} for {run.partition}; nothing was contacted or submitted.",
        f"Run {run.url(settings.bucket)}, its first generation.",
        f"{assumed}; {why}.",
    ]
    lines += [f"A night would refuse it: {problem}." for problem in problems]
    lines += [
        f"{name} is not set here: {value} is a placeholder." for name, value in missing.items() if value == settings.bucket
    ]
    if settings.pod_patch:
        lines.append(f"Merged over the pod: {settings.pod_patch} (NIGHTSHIFT_POD_PATCH).")
    if spec.model.uri.startswith("hf://") and spec.compute.weights_gib is None:
        gib = spec.compute.worker(options.profile).weights_gib_max
        known = "the task plan looks up the real size, unless the revision is a commit"
        lines.append(f"The disk is for {gib} GiB of weights, the most that a worker can hold; {known}.")
    fallbacks = spec.compute.fallbacks
    lines.append(f"When it gets no capacity: {', then '.join(fallbacks)}." if fallbacks else "It has no fallback.")
    return "".join(f"# {line}\n" for line in lines)
