"""Commands and options of a command line that do not exist, and the ones that may have been meant.

Before argparse reads the words: of a slip in an option it says only that the right one is missing, or lists every command.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from pathlib import Path


def check(parser: argparse.ArgumentParser, words: Sequence[str], commands: Sequence[str]) -> None:
    """Ends the process with argparse's exit code if a command or a long option does not exist; it says which is meant.

    parser: knows the options of the command that is named. words, commands: a command of two words is one word.
    """
    name = next((word for word in words if not word.startswith("-")), None)
    if name is None:
        return
    if name not in commands:
        parser.error(f"there is no command {name!r}{_meant(name, commands, 'nightshift --help lists them')}")
    command = command_of(parser, name)
    for word in _options(words):
        known = [flag for action in (*command._actions, *parser._actions) for flag in action.option_strings]
        # argparse takes the beginning of an option for the option.
        if not any(flag.startswith(word) for flag in known):
            command.error(f"there is no option {word}{_meant(word, known, f'nightshift {name} --help lists them')}")
    second = next(iter(words[words.index(name) + 1 :]), "-")
    longer = [each for each in commands if each.startswith(f"{name} ")]
    if not second.startswith("-") and not Path(second).exists() and (meant := _nearest(f"{name} {second}", longer)):
        command.error(f"there is no file {second!r} and no command `{name} {second}`: did you mean `{meant}`?")


def command_of(parser: argparse.ArgumentParser, name: str) -> argparse.ArgumentParser:
    """The parser of one command."""
    (found,) = (each for each in parser._actions if isinstance(each, argparse._SubParsersAction))
    command: argparse.ArgumentParser = found.choices[name]
    return command


def _options(words: Sequence[str]) -> Iterable[str]:
    for word in words:
        if word == "--":
            return
        if word.startswith("--"):
            yield word.partition("=")[0]


def _meant(word: str, known: Sequence[str], else_: str) -> str:
    near = _nearest(word, known)
    return f": did you mean {near}?" if near else f": {else_}"


def _nearest(word: str, known: Sequence[str]) -> str | None:
    from nightshift.fields.mistakes import nearest

    return nearest(word, known)
