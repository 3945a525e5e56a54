"""Adds a command to the parser, with the options that its dataclass declares (`nightshift.fields.arguments.option`)."""

from __future__ import annotations

import argparse
import os
from dataclasses import MISSING, Field, fields
from types import ModuleType
from typing import Any


def add_command(
    commands: argparse._SubParsersAction[argparse.ArgumentParser], name: str, module: ModuleType, **words: Any
) -> None:
    """module: has `Options`, `run` (options -> exit code), `DESCRIPTION` and `EPILOG`. words: of ``add_parser``."""
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
