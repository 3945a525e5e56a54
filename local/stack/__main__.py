"""``python3 -m local.stack up|down|status|env|run``. Exit codes: 0, 1 if it failed, 2 for a wrong command line."""

from __future__ import annotations

import argparse
import re
import signal
import sys
import time
from pathlib import Path

from local.stack import airflow, parts, shell
from local.stack.folder import ROOT, Folder
from local.stack.stack import DEFAULT_STATE, Stack, StackDown, StackError


def main() -> int:
    parser = argparse.ArgumentParser(prog="python3 -m local.stack", description="The local stack of nightshift.")
    commands = parser.add_subparsers(dest="command", required=True)
    for name, text in (
        ("up", "start the stack and leave it up"),
        ("run", "start the stack and hold it until Ctrl-C"),
        ("status", "show what is up"),
        ("env", 'print the variables of the stack\'s clients for a shell: eval "$(make env)"'),
        ("down", "stop the stack and everything it started"),
    ):
        command = commands.add_parser(name, help=text, description=text)
        command.add_argument("--state", type=Path, default=DEFAULT_STATE, metavar="DIR", help="default: %(default)s")
        if name in ("up", "run"):
            command.add_argument("--parts", default=",".join(parts.NIGHT), help="default: %(default)s")
            extra = ", ".join(name for name in parts.NAMES if name not in parts.NIGHT)
            command.add_argument("--with", dest="also", default="", metavar="PARTS", help=f"parts to start besides: {extra}")
            command.add_argument("--dags", type=Path, default=ROOT / "dags", metavar="DIR", help="default: %(default)s")
            text = "the environment of Airflow (default: %(default)s)"
            command.add_argument("--airflow", choices=airflow.ENVIRONMENTS, default=airflow.ENVIRONMENTS[0], help=text)
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        if arguments.command == "status":
            return _status(Stack(arguments.state))
        if arguments.command == "down":
            return _down(Stack(arguments.state, say=_say))
        if arguments.command == "env":
            shown = shell.variables(Folder.at(arguments.state), Stack(arguments.state).environment())
            print(shell.exports(shown), flush=True)
            return 0
        names, dags = re.findall(r"[^\s,]+", f"{arguments.parts},{arguments.also}"), arguments.dags
        stack = Stack(arguments.state, parts=names, dags=dags, airflow_environment=arguments.airflow, say=_say)
        return _up(stack) if arguments.command == "up" else _run(stack)
    except StackError as error:
        print(f"[stack] {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 128 + signal.SIGINT


def _up(stack: Stack) -> int:
    stack.up()
    _login(stack)
    return 0


def _run(stack: Stack) -> int:
    with stack:
        _login(stack)
        _say("Ctrl-C ends it")
        while stack.document():
            time.sleep(1)
    return 0


def _down(stack: Stack) -> int:
    began = time.monotonic()
    stack.down()
    _say(f"down in {time.monotonic() - began:.1f} s")
    return 0


def _status(stack: Stack) -> int:
    try:
        document = stack.document()
    except StackDown as error:
        print(error)
        return 1
    for name, part in document["parts"].items():
        note = f"  ({part['error']})" if part["error"] else ""
        print(f"{name:<10} {part['state']:<10} {part['address']}  pid {part['pid']}, started {part['starts']} times{note}")
    print(f"supervisor {document['state']:<10} pid {document['supervisor']}, reaper {document['reaper']}")
    _login(stack)
    return 0 if stack.healthy() else 1


def _login(stack: Stack) -> None:
    login = stack.document().get("airflow")
    if login:
        print(f"Airflow: {login['url']}  user {login['user']}, password {login['password']}", flush=True)


def _say(text: str) -> None:
    print(f"[stack] {text}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
