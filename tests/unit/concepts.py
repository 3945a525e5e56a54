"""What a person can meet: how many commands, options, settings, keys, stored formats and exit codes there are.

``python -m tests.unit.concepts`` prints them; docs/architecture.md has the budget.
"""

from __future__ import annotations

import argparse
import json
import re
from pathlib import Path
from typing import Any

from nightshift import cli, exits, formats

ROOT = Path(__file__).resolve().parents[2]


def counts() -> dict[str, int]:
    """By the names that the page's table has."""
    variables = {
        name
        for file in (ROOT / "plugins/nightshift").rglob("*.py")
        for name in re.findall(r"\bNIGHTSHIFT_[A-Z_]*[A-Z]\b", file.read_text())
    }
    return {
        "commands at the top level": len(cli.COMMANDS),
        "their subcommands": len(cli.SUBCOMMANDS),
        "options of commands": _options(),
        "`NIGHTSHIFT_*` variables": len(variables),
        "keys of a job file": _keys("job.schema.json"),
        "keys of a stream's file": _keys("stream.schema.json"),
        "versioned formats": sum(isinstance(each, formats.Format) for each in vars(formats).values()),
        "exit codes": sum(isinstance(each, int) for name, each in vars(exits).items() if name.isupper()),
    }


def _options() -> int:
    commands = next(
        each for each in cli.command_parser()._actions if isinstance(each, argparse._SubParsersAction)
    ).choices.values()
    return sum(bool(action.option_strings) and action.dest != "help" for each in commands for action in each._actions)


def _keys(schema: str) -> int:
    """Each property of each object in it, once."""

    def of(node: Any) -> int:
        if isinstance(node, list):
            return sum(map(of, node))
        if not isinstance(node, dict):
            return 0
        own = len(node["properties"]) if isinstance(node.get("properties"), dict) else 0
        return own + sum(of(each) for each in node.values())

    return of(json.loads((ROOT / "docs" / schema).read_text()))


if __name__ == "__main__":
    for name, count in counts().items():
        print(f"{count:5}  {name}")
