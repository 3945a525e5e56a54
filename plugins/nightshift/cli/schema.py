"""The command `nightshift schema`."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Final

from nightshift import exits
from nightshift.fields.arguments import flag
from nightshift.spec import JobSpec, StreamSpec
from nightshift.spec.profile_names import ProfilesError
from nightshift.spec.schema import json_schema_text

DESCRIPTION: Final = "Prints the JSON schema of a job file, by which editors complete and check it."
EPILOG: Final = "Exit codes: 0; 2 wrong command line, or the file that NIGHTSHIFT_PROFILES names cannot be used."


@dataclass(frozen=True)
class Options:
    stream: bool = flag("--stream", "of a stream's file instead")


def run(options: Options) -> int:
    try:
        print(json_schema_text(StreamSpec if options.stream else JobSpec), end="")
    except ProfilesError as error:
        print(f"nightshift schema: {error}", file=sys.stderr)
        return exits.BAD_INPUT
    return exits.DONE
