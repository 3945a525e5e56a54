"""Completion of the command line in bash, zsh and fish, by argcomplete.

argcomplete and not a script that is written once (shtab): Airflow brings it, so deployments have it, and it asks this program,
so what it offers is what this release has. docs/operate/status.md has the line that turns it on.
"""

from __future__ import annotations

import os
from argparse import ArgumentParser
from collections.abc import Callable, Iterable
from typing import Final

from nightshift.cli.mistakes import command_of

VARIABLE: Final = "_ARGCOMPLETE"
"""Set by the shell's part while it asks for completions."""


def asked() -> bool:
    return VARIABLE in os.environ


def answer(parser_of: Callable[[str], ArgumentParser], two_words: Iterable[str]) -> None:
    """Tells the shell what may come next, and ends the process. two_words: commands of two words, one word to the parser."""
    import argcomplete

    line, point = os.environ["COMP_LINE"], int(os.environ["COMP_POINT"])
    program, _, rest = line.partition(" ")
    for command in two_words:
        if rest.lstrip().startswith(f"{command} "):
            line, point = f"{program} {rest.replace(command, command.replace(' ', chr(92) + ' '), 1)}", point + 1
            os.environ.update(COMP_LINE=line, COMP_POINT=str(point))
            parser = parser_of(command)
            break
    else:
        words = rest.split()
        name = next((word for word in words if not word.startswith("-")), "")
        parser = parser_of(name)
        _offer(parser, name, [each.split()[1] for each in two_words if each.startswith(f"{name} ")])
    argcomplete.autocomplete(parser, always_complete_options="long")


def _offer(parser: ArgumentParser, name: str, words: list[str]) -> None:
    """Offers the second words of commands where the command of one word takes a file."""
    from argcomplete.completers import FilesCompleter

    if not words:
        return
    first = next(action for action in command_of(parser, name)._actions if not action.option_strings)
    first.completer = lambda prefix, **_: [*words, *FilesCompleter()(prefix)]  # type: ignore[attr-defined]
