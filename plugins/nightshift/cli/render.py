"""The command `nightshift render`."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Final

from nightshift import exits
from nightshift.cli import render_copy, render_job, render_stream
from nightshift.cli.render_job import JobOptions
from nightshift.cli.render_stream import StreamOptions
from nightshift.fields.arguments import option
from nightshift.jobset.manifest.patch import PatchError
from nightshift.settings import SettingsError
from nightshift.spec import SpecErrors, StreamSpec, load_files

DESCRIPTION: Final = (
    "Prints as YAML the Kubernetes JobSet of a job for one partition, or the Deployments of a stream with all that belongs to "
    "them, with this deployment's NIGHTSHIFT_* variables if they are set. Contacts no service and submits nothing."
)
EPILOG: Final = "Exit codes: 0 the manifests are printed; 2 bad input."


@dataclass(frozen=True)
class Options(StreamOptions, JobOptions):
    copy_model: str | None = option(
        "--copy-model",
        metavar="gs://BUCKET[/FOLDER]",
        help="print the Job that copies the model from the Hub into this bucket",
    )


def run(options: Options, environment: Mapping[str, str] | None = None) -> int:
    """Prints the YAML. What is wrong goes to stderr, a line for each mistake."""
    try:
        print(_rendered(options, os.environ if environment is None else environment), end="")
    except (SpecErrors, SettingsError, PatchError) as error:
        print(error, file=sys.stderr)
        return exits.BAD_INPUT
    except ValueError as error:
        for problem in str(error).splitlines():
            print(f"{options.file}: {problem}", file=sys.stderr)
        return exits.BAD_INPUT
    return exits.DONE


def _rendered(options: Options, environment: Mapping[str, str]) -> str:
    specs, errors = load_files([options.file])
    if errors:
        raise errors[options.file]
    is_stream = isinstance(specs[options.file], StreamSpec)
    if options.copy_model is not None:
        return render_copy.preview(specs[options.file], options.copy_model, environment)
    others = [each.name for each in fields(JobOptions if is_stream else StreamOptions) if each.name != "file"]
    if misplaced := [name for name in others if getattr(options, name) not in (None, False)]:
        names = ", ".join("--" + name.replace("_", "-") for name in misplaced)
        kind = "a stream" if is_stream else "a nightly job"
        raise ValueError(f"{names}: The file describes {kind}, which has no such option. Leave it out.")
    if is_stream:
        return render_stream.preview(options, environment)
    if options.partition is None:
        raise ValueError("--partition: A run needs a day. Pass, for example, --partition 2026-11-20.")
    return render_job.preview(options, environment)
