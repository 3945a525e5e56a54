"""The command `nightshift schema`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from nightshift import exits
from nightshift.fields.arguments import flag
from nightshift.spec import JobSpec, StreamSpec
from nightshift.spec.schema import json_schema_text

DESCRIPTION: Final = "Prints the JSON schema of a job file, by which editors complete and check it."
EPILOG: Final = "Exit codes: 0; 2 wrong command line."


@dataclass(frozen=True)
class Options:
    stream: bool = flag("--stream", "of a stream's file instead (docs/stream.schema.json)")


def run(options: Options) -> int:
    print(json_schema_text(StreamSpec if options.stream else JobSpec), end="")
    return exits.DONE
