"""The command `nightshift validate`."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from nightshift import exits
from nightshift.fields.arguments import option
from nightshift.settings import SettingsError, account_of
from nightshift.spec import JobSpec, StreamSpec, engine_checks, load_files, notifiers, sql
from nightshift.spec.engine_defaults import Version, version_of
from nightshift.spec.folder import job_files
from nightshift.spec.vllm_names import unknown

DESCRIPTION: Final = "Reports every mistake in the files, each with its line and what to write instead."
EPILOG: Final = "Exit codes: 0 all files are valid; 2 one is not."


@dataclass(frozen=True)
class Options:
    files: list[Path] = option(
        nargs="+", type=Path, metavar="FILE", help="the YAML file of a job or a stream, or a folder of them"
    )


def run(options: Options) -> int:
    folders = {path: job_files(path) for path in options.files if path.is_dir()}
    specs, errors = load_files(file for path in options.files for file in folders.get(path, [path]))
    jobs = {path: spec for path, spec in specs.items() if isinstance(spec, JobSpec)}
    # What is wrong with a job's notifiers and account, where the deployment's settings are known.
    operators, accounts = os.environ.get(notifiers.SETTING), os.environ.get("NIGHTSHIFT_SERVICE_ACCOUNT", "")
    wrong = {path: list(notifiers.wrong(path, job, operators)) for path, job in jobs.items()} if operators else {}
    for path, spec in specs.items():
        try:
            account_of(accounts, spec.job)
        except SettingsError as error:
            wrong.setdefault(path, []).append(f"{path}: {error}")
    for file, spec in specs.items():
        if wrong.get(file):
            continue
        print(f"{file}: valid: {spec.job}, {spec.task} by {spec.model.name} {spec.summary}")
        for doubt in engine_checks.doubts(spec):
            print(f"{file}: {doubt}", file=sys.stderr)
        if isinstance(spec, JobSpec) and (unread := sql.unread(spec.source.query)):
            print(f"{file}: {unread}", file=sys.stderr)
        for odd in unknown(spec.engine.args, _image_version(spec)):
            print(f"{file}: engine.args: {odd}", file=sys.stderr)
    empty = [
        f"{path}: The folder has no job files. Name one with *.yaml files." for path, files in folders.items() if not files
    ]
    for problem in (*errors.values(), *(line for lines in wrong.values() for line in lines), *empty):
        print(problem, file=sys.stderr)
    return exits.BAD_INPUT if errors or any(wrong.values()) or empty else exits.DONE


def _image_version(spec: JobSpec | StreamSpec) -> Version | None:
    """vLLM's, of the image that this deployment runs the engine with; None if its tag does not say it."""
    from nightshift.jobset.manifest.server import image_setting
    from nightshift.settings import Settings

    name = image_setting(spec.compute.worker(), Settings("", ""))
    return version_of(os.environ.get(f"NIGHTSHIFT_{name.upper()}") or str(getattr(Settings, name)))
