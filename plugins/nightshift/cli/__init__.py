"""The command `nightshift`. Each subcommand is a module beside this one: its `Options`, its `run`, and the words of its help.

Only the module of the command that is run is imported, so ``--help`` is quick, and a package that another command needs may be
missing. The exit codes are those of `nightshift.exits`.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import MISSING, Field, fields
from importlib import import_module
from types import ModuleType
from typing import Any, Final, NoReturn

from nightshift import exits, pip
from nightshift.cli import completion, mistakes
from nightshift.cli.version import Version
from nightshift.fields.terminal import Written

COMMANDS: Final = {
    "validate": "report every mistake in the files of jobs and streams",
    "schema": "print the JSON schema of a job file",
    "runs": "list the runs of the bucket, those that need attention first",
    "status": "show a run: progress, ending, dead letters, samples; or a stream: backlog, rates, latency",
    "pause": "stop a run's workers and keep what is committed",
    "resume": "resume a paused run",
    "preview": "try a job on some rows: prompts, answers, what the night would take",
    "tune": "find the engine's settings under which a job is fastest",
    "run": "trigger a job in Airflow, and follow it to its end",
    "plan": "show what a night would take: workers, time, and whether it fits",
    "costs": "add up what runs cost, by job, from the audit table",
    "render": "print the Kubernetes manifests of a job or a stream",
    "doctor": "check, before a night, that everything it needs is in place",
    "batch": "send an OpenAI batch file to a server; run it again to resume where it stopped",
    "stream": "answer the messages of a subscription as they arrive",
    "batcher": "merge the requests of waiting callers in front of a server",
}
SUBCOMMANDS: Final = {
    "stream redrive": "publish the dead letters of a stream again",
    "stream load": "merge the new files of a stream into its table in BigQuery",
}
"""Two words of the command line. The help of ``nightshift stream`` lists them."""
EXTRAS: Final = {
    "pause": "airflow",
    "resume": "airflow",
    "preview": "airflow,driver",
    "tune": "airflow,driver",
    "plan": "airflow",
    "costs": "airflow",
    "doctor": "airflow",
    "batch": "driver",
    "stream": "driver,stream",
    "stream redrive": "stream",
    "stream load": "airflow",
    "batcher": "driver,stream",
}
"""The extras of the package without which a command does nothing, or only a part of its work. The others need none."""
RENAMED: Final = {"redrive": "stream redrive", "load-stream": "stream load"}
"""Commands of release 0.2.0: they still run in 0.3, and say their new name."""


def entry() -> NoReturn:
    """The process ``nightshift``: runs the command that its arguments name, and ends with that command's exit code.

    It does not shut the interpreter down as sys.exit does: obstore's threads may then abort it, with the work done and the
    output written.
    """
    code = main()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit code; argparse itself exits with 2 for bad arguments.

    Whatever it prints is harmless to a terminal (`nightshift.fields.terminal`).
    """
    with redirect_stdout(Written(sys.stdout)), redirect_stderr(Written(sys.stderr)):
        return _run(arguments)


def _run(arguments: Sequence[str] | None) -> int:
    words = list(sys.argv[1:] if arguments is None else arguments)
    if words and words[0] in RENAMED:
        print(f"nightshift {words[0]} is now `nightshift {RENAMED[words[0]]}`.", file=sys.stderr)
        words[0] = RENAMED[words[0]]
    words, name = named(words)
    try:
        if completion.asked():
            completion.answer(command_parser, SUBCOMMANDS)
        parser = command_parser(name)
        mistakes.check(parser, words, [*COMMANDS, *SUBCOMMANDS])
        options = parser.parse_args(words)
        code: int = options.command(options)
    except ModuleNotFoundError as error:
        if str(error.name).partition(".")[0] == "nightshift":
            raise
        print(lacks(name, error), file=sys.stderr)
        return exits.BAD_INPUT
    return code


def named(words: list[str]) -> tuple[list[str], str]:
    """The words of a command line, with a command of two words as one; and the command, "" if they name none."""
    if " ".join(words[:2]) in SUBCOMMANDS:
        words = [" ".join(words[:2]), *words[2:]]
    return words, next((word for word in words if not word.startswith("-")), "")


def lacks(name: str, error: ModuleNotFoundError) -> str:
    """What a command says that needs a package which is not installed: one line, with what installs it."""
    return f"nightshift {name} needs the package {error.name}, which is not installed here: {pip(EXTRAS.get(name, 'airflow'))}"


def command_parser(only: str | None = None) -> argparse.ArgumentParser:
    """The parser of the command line. only: the command whose options it has to know; None: all of them."""
    parser = argparse.ArgumentParser(prog="nightshift", description="Turns a warehouse table into predictions every night.")
    parser.add_argument(
        "--version", action=Version, nargs=0, help="print the release and the last commit that changed its code, and exit"
    )
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for name, help_ in COMMANDS.items():
        if only in (None, name):
            _add_command(commands, name, import_module(f"nightshift.cli.{name}"), help=help_)
        else:
            commands.add_parser(name, help=help_)
    for name in SUBCOMMANDS:
        if only in (None, name):
            _add_command(commands, name, import_module(f"nightshift.cli.{name.replace(' ', '_')}"))
    return parser


def _add_command(
    commands: argparse._SubParsersAction[argparse.ArgumentParser], name: str, module: ModuleType, **words: Any
) -> None:
    """Adds a command to the parser, with the options that its dataclass declares (`nightshift.fields.arguments.option`).

    module: has `Options`, `run` (options -> exit code), `DESCRIPTION` and `EPILOG`. words: of ``add_parser``.
    """
    parser = commands.add_parser(name, description=module.DESCRIPTION, epilog=module.EPILOG, **words)
    groups: dict[str, Any] = {"": parser}
    for each in fields(module.Options):
        given = dict(each.metadata["words"])
        if not given:
            continue
        if each.metadata["group"] not in groups:
            groups[each.metadata["group"]] = parser.add_argument_group(each.metadata["group"])
        if each.metadata["flags"]:
            default = _default(each)
            given |= {"dest": each.name} | ({"required": True} if default is MISSING else {"default": default})
        groups[each.metadata["group"]].add_argument(*(each.metadata["flags"] or [each.name]), **given)
    parser.set_defaults(command=lambda namespace: module.run(_options(module, namespace)))


def _options(module: ModuleType, namespace: argparse.Namespace) -> Any:
    found = {each.name: getattr(namespace, each.name, None) for each in fields(module.Options)}
    unnamed = {each.name: _default(each) for each in fields(module.Options) if not each.metadata["words"]}
    return module.Options(**found | unnamed)


def _default(each: Field[Any]) -> Any:
    """What the environment says, else the field's own default."""
    default = each.default if each.default_factory is MISSING else each.default_factory()
    variable = each.metadata["variable"]
    return os.environ.get(variable, default) if variable else default
