"""A container's environment, and ``$(VAR)`` in its command, as in Kubernetes. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class EnvVar:
    """One entry of a container's env. field: what a fieldRef or resourceFieldRef names; if set, ``value`` is not used."""

    name: str
    value: str = ""
    field: str | None = None


def expand(text: str, variables: Mapping[str, str]) -> str:
    """Replaces ``$(NAME)``, once. An unknown name stays as it is; ``$$`` is a dollar sign, so ``$$(NAME)`` gives ``$(NAME)``.

    Not done: a kubelet garbles a character beyond ASCII after a single dollar sign.
    """
    out: list[str] = []
    position = 0
    while position < len(text):
        following = text[position + 1 : position + 2]
        if text[position] != "$" or not following:
            out.append(text[position])
            position += 1
        elif following == "(" and (end := text.find(")", position + 2)) >= 0:
            name = text[position + 2 : end]
            out.append(variables.get(name, f"$({name})"))
            position = end + 1
        else:
            out.append("$" if following == "$" else "$" + following)
            position += 2
    return "".join(out)


def declared_environment(
    declared: Sequence[EnvVar], fields: Mapping[str, str], ports: Mapping[str, str], index: int
) -> dict[str, str]:
    """What manifest and Job give a container, which are also the variables that its command may name.

    fields: values for an entry's ``field``. ports: variables whose value is a port that the runtime chose; they override
    the manifest. A value may refer to entries before it; JOB_COMPLETION_INDEX comes last,
    as the Job controller appends it.
    """
    result: dict[str, str] = {name: port for name, port in ports.items() if name not in {entry.name for entry in declared}}
    for entry in declared:
        if entry.name in ports:
            result[entry.name] = ports[entry.name]
        elif entry.field is not None:
            result[entry.name] = fields[entry.field]
        else:
            result[entry.name] = expand(entry.value, result)
    result.setdefault("JOB_COMPLETION_INDEX", str(index))
    return result


def static_variables(declared: Sequence[EnvVar], ports: Mapping[str, str]) -> dict[str, str]:
    """The variables that a probe's command may name: a kubelet takes their values as the manifest has them, with their own
    references, and none for a field's. ports: as in `declared_environment`.
    """
    # The Job controller appends JOB_COMPLETION_INDEX as a field.
    found = {"JOB_COMPLETION_INDEX": ""} | {entry.name: "" if entry.field is not None else entry.value for entry in declared}
    return found | dict(ports)
