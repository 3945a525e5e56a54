"""Words of a command line and values of variables, as a manifest must write them.

A kubelet replaces ``$(NAME)`` in command, arguments and variables by the variable NAME, which may be a secret, and ``$$`` by a
dollar sign. So the dollar signs of every foreign text are doubled. A flag and its value are one word, so that a value that
begins with dashes is not taken for a flag.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def literal(text: str) -> str:
    """A text that reaches the container as it is."""
    return text.replace("$", "$$")


def flag(name: str, value: object) -> str:
    """A flag of vLLM. value: a text or a number."""
    return f"--{name}={literal(str(value))}"


def flags(args: Mapping[str, Any]) -> list[str]:
    """A job's ``engine.args``, in their order.

    A list is several words, as argparse takes it; no item begins with a dash (`nightshift.spec.values.engine_value`).
    """
    found: list[str] = []
    for name, value in args.items():
        if isinstance(value, list):
            found += [f"--{name}", *(literal(str(each)) for each in value)] if len(value) > 1 else [flag(name, value[0])]
        elif isinstance(value, bool):
            found.append(f"--{'' if value else 'no-'}{name}")
        else:
            found.append(flag(name, value))
    return found
