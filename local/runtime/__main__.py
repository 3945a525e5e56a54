"""``python -m local.runtime --state DIR --config FILE.json``: runs the agent of one state folder.

Exit codes: 0 after SIGTERM or SIGINT, 1 if another agent has the folder, 2 for a wrong configuration.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import sys
from pathlib import Path

from local.runtime.agent import Agent
from local.runtime.config import AgentConfigError, load_config
from local.runtime.folder import AgentFolder


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m local.runtime", description="Runs JobSets as local processes.")
    parser.add_argument("--state", type=Path, required=True, metavar="DIR", help="folder for all of its state; made if missing")
    parser.add_argument("--config", type=Path, required=True, metavar="FILE", help="JSON: images, env, max_pods, ...")
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s", stream=sys.stderr)
    try:
        config = load_config(arguments.config)
    except AgentConfigError as error:
        print(error, file=sys.stderr)
        return 2
    state = AgentFolder(arguments.state)
    if state.lock() is None:
        print(f"another agent runs the pods of {state.path}; stop it, or give this one its own folder", file=sys.stderr)
        return 1
    asyncio.run(Agent(state, config).run())
    return 0


if __name__ == "__main__":
    sys.exit(main())
