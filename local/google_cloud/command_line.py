"""The words of a gcloud command: which command it is, its flags and its arguments, refused as gcloud refuses them.

`flags.json` holds the flags of each command that a page of this repository types, as gcloud's own parser knows them (its
`Command.GetAllAvailableFlags()`, of the version that the file names).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from local.google_cloud.cloud import Refused

COMMANDS: Final[dict[str, dict[str, Any]]] = json.loads(Path(__file__).with_name("flags.json").read_text())["commands"]
EVERYWHERE: Final = {
    "--project",
    "--format",
    "--flatten",
    "--account",
    "--verbosity",
    "--impersonate-service-account",
    "--billing-project",
}
SWITCHES_EVERYWHERE: Final = {"--quiet", "-q"}


@dataclass(frozen=True)
class Given:
    """command: ``container clusters create``. arguments: its positional ones. rest: what follows ``--``."""

    command: str
    arguments: tuple[str, ...]
    flags: dict[str, str]
    rest: tuple[str, ...] = ()

    def value(self, name: str, default: str = "") -> str:
        return self.flags.get(f"--{name}", default)

    def has(self, name: str) -> bool:
        return f"--{name}" in self.flags

    def list(self, name: str) -> list[str]:
        return [each for each in self.value(name).split(",") if each]

    def pairs(self, name: str) -> dict[str, str]:
        """Of ``--name=KEY=VALUE,KEY=VALUE``."""
        return dict(each.partition("=")[::2] for each in self.list(name))


def parse(words: Sequence[str]) -> Given:
    """Raises Refused with exit code 2, as gcloud does."""
    command = _command(words)
    dotted = f"(gcloud.{command.replace(' ', '.')})"
    known = COMMANDS[command]
    values, switches = {*known["values"].split(), *EVERYWHERE}, {*known["switches"].split(), *SWITCHES_EVERYWHERE}
    arguments: list[str] = []
    flags: dict[str, str] = {}
    left = list(words[len(command.split()) :])
    while left:
        word = left.pop(0)
        name, equals, value = word.partition("=")
        if word == "--":
            break
        if not word.startswith("-") or word == "-":
            arguments.append(word)
        elif name in switches:
            if equals:
                raise Refused(f"ERROR: {dotted} argument {name}: ignored explicit argument {value!r}", 2)
            flags[name] = ""
        elif name in values or name in known["choices"]:
            if not equals and not left:
                raise Refused(f"ERROR: {dotted} argument {name}: expected one argument", 2)
            flags[name] = value if equals else left.pop(0)
        else:
            raise Refused(f"ERROR: {dotted} unrecognized arguments: {word}", 2)
    _check(dotted, known, arguments, flags)
    return Given(command, tuple(arguments), flags, tuple(left))


def _command(words: Sequence[str]) -> str:
    """The longest known command that they begin with. Raises Refused."""
    for length in range(len(words), 0, -1):
        if " ".join(words[:length]) in COMMANDS:
            return " ".join(words[:length])
    depth = max(
        (n for n in range(len(words)) if any(f"{each} ".startswith(f"{' '.join(words[:n])} ") for each in COMMANDS)), default=0
    )
    group = ".".join(["gcloud", *words[:depth]])
    text = f"ERROR: ({group}) Invalid choice: {words[depth] if words else ''!r}."
    if f"beta {' '.join(words[:2])}" in {" ".join(each.split()[:3]) for each in COMMANDS}:
        text += f"\nThis command is available in one or more alternate release tracks.  Try:\n  gcloud beta {words[0]}"
    raise Refused(text, 2)


def _check(dotted: str, known: dict[str, Any], arguments: list[str], flags: dict[str, str]) -> None:
    least, most = known["positional"]
    if most is not None and len(arguments) > most:
        raise Refused(f"ERROR: {dotted} unrecognized arguments: {' '.join(arguments[most:])}", 2)
    missing = [name for name in known["required"] if not flags.get(name)]
    if missing or len(arguments) < least:
        raise Refused(f"ERROR: {dotted} argument {' '.join(missing) or 'NAME'}: Must be specified.", 2)
    for name, choices in known["choices"].items():
        if name in flags and flags[name] not in choices.split():
            valid = ", ".join(choices.split())
            raise Refused(f"ERROR: {dotted} argument {name}: Invalid choice: {flags[name]!r}.\nValid choices are [{valid}].", 2)
