"""``python3 -m local.lineage``: the datasets that the stack's OpenLineage events name, one line for each event."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from local.stack.folder import Folder
from local.stack.stack import DEFAULT_STATE


def _names(datasets: list[dict[str, Any]]) -> str:
    # BigQuery's namespace is the word bigquery, Cloud Storage's is the bucket's URL.
    return ", ".join(f"{item['namespace']}{'/' if '://' in item['namespace'] else ':'}{item['name']}" for item in datasets)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python3 -m local.lineage", description=__doc__)
    parser.add_argument("--state", type=Path, default=DEFAULT_STATE, help="the stack's state folder")
    file = Folder.at(parser.parse_args().state).lineage
    if not file.exists():
        print(f"{file} does not exist: nothing has run in this stack yet", file=sys.stderr)
        return 1
    for line in file.read_text().splitlines():
        event = json.loads(line)
        if event.get("inputs") or event.get("outputs"):
            print(f"{event['eventType']:<8} {event['job']['name']}")
            print(f"         from {_names(event['inputs'])}\n         to   {_names(event['outputs'])}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
