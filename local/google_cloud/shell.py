"""A page's commands in one bash, against the stand-ins.

Each program is a function of the shell that sends its words to a thread of this process, by a socket on the loopback address:
so a command takes milliseconds, and a page of a hundred of them is walked in a second or two. Everything else (`sed`, `cat`,
loops, pipes) is the real program.
"""

from __future__ import annotations

import os
import socket
import socketserver
import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Final

from local.google_cloud import bq, composer, gcloud, kubectl, registry
from local.google_cloud.cloud import Cloud, Refused

Program = Callable[["Walk", Sequence[str], str], str]
"""(walk, words, stdin) -> what it prints. Raises Refused."""
_FUNCTIONS: Final = r"""
stand_in() {
  local input= out= err= code= link variables=
  # Like the real programs, it reads its input only if it is told to.
  case "$1 $*" in *' - '*|*' -'|yq*) IFS= read -r -d '' input || true;; esac
  [[ $1 != nightshift ]] || variables=$(export -p)
  exec {link}<>"/dev/tcp/127.0.0.1/$STAND_INS"
  printf '%s\0' "$#" "$@" "$PWD" "$input" "$variables" >&"$link"
  IFS= read -r -d '' code <&"$link"; IFS= read -r -d '' out <&"$link"; IFS= read -r -d '' err <&"$link"
  exec {link}>&-
  [[ -z $out ]] || printf '%s\n' "$out"
  [[ -z $err ]] || printf '%s\n' "$err" >&2
  return "$code"
}
"""
_IN_ENVIRONMENT: Final = '#!/bin/bash\n. "$STAND_IN_FUNCTIONS"\nstand_in in-venv {folder} {name} "$@"\n'


@dataclass(frozen=True)
class Call:
    """One command, with its variables filled in."""

    program: str
    words: tuple[str, ...]
    refused: str = ""

    def option(self, name: str) -> str | None:
        """The value of ``--name=VALUE`` or ``-n VALUE``; '' for a flag that has none."""
        for number, word in enumerate(self.words):
            if word == name:
                return self.words[number + 1] if name.startswith("-") and len(name) == 2 else ""
            if word.startswith(f"{name}="):
                return word.partition("=")[2]
        return None

    def says(self, *words: str) -> bool:
        return self.words[: len(words)] == words


@dataclass
class Walk:
    """cloud: as it was left. code, error: of the shell. others: programs besides those of `PROGRAMS`."""

    cloud: Cloud
    render: composer.Renderer
    others: Mapping[str, Program] = field(default_factory=dict)
    calls: list[Call] = field(default_factory=list)
    code: int = 0
    out: str = ""
    error: str = ""

    def gcloud(self, *words: str) -> list[Call]:
        return [call for call in self.calls if call.program == "gcloud" and call.says(*words)]

    def answer(self, program: str, words: Sequence[str], stdin: str) -> tuple[int, str, str]:
        try:
            run = {**PROGRAMS, **self.others}[program]
            out = run(self, words, stdin)
        except Refused as error:
            self.calls.append(Call(program, tuple(words), str(error)))
            return error.code, "", str(error)
        self.calls.append(Call(program, tuple(words)))
        return 0, out, ""


def _python3(walk: Walk, words: Sequence[str], stdin: str) -> str:
    match list(words):
        case ["-m", "venv", folder]:
            programs = walk.cloud.machine.folder / folder / "bin"
            programs.mkdir(parents=True, exist_ok=True)
            for name in ("pip", "twine"):
                (programs / name).write_text(_IN_ENVIRONMENT.format(folder=folder, name=name))
                (programs / name).chmod(0o755)
            return ""
        case ["-m", "pip", *rest]:
            return registry.pip(walk.cloud, "", rest)
        case ["-m", "twine", *rest]:
            return registry.twine(walk.cloud, "", rest)
    raise Refused(f"python3: the stand-in does not know {' '.join(words)}", 2)


def _in_venv(walk: Walk, words: Sequence[str], stdin: str) -> str:
    folder, name, *rest = words
    return {"pip": registry.pip, "twine": registry.twine}[name](walk.cloud, folder, rest)


def _curl(walk: Walk, words: Sequence[str], stdin: str) -> str:
    """Airflow's API alone, with the person's token."""
    pairs = dict(pairwise(words))
    if f"Authorization: Bearer {gcloud.TOKEN}" not in words:
        raise Refused("curl: (22) The requested URL returned error: 401", 22)
    if "--data" in words and "Content-Type: application/json" not in words:
        raise Refused("curl: (22) The requested URL returned error: 422: Unable to parse the body", 22)
    url = next(word for word in words if word.startswith("https://"))
    return composer.ask(walk.cloud, url, pairs.get("--data", ""), walk.render)


PROGRAMS: Final[dict[str, Program]] = {
    "gcloud": lambda walk, words, stdin: gcloud.run(walk.cloud, words),
    "bq": lambda walk, words, stdin: bq.run(walk.cloud, words),
    "kubectl": lambda walk, words, stdin: kubectl.run(walk.cloud, words, stdin),
    "docker": lambda walk, words, stdin: registry.docker(walk.cloud, words),
    "curl": _curl,
    "python3": _python3,
    "in-venv": _in_venv,
}


def follow(walk: Walk, script: str) -> Walk:
    """Runs a script under ``set -euo pipefail`` in the machine's folder, until its end or its first refusal."""
    lock = threading.Lock()

    class Handler(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            *words, folder, stdin, exported = _received(self.request)
            with lock:
                walk.cloud.machine.folder = Path(folder)
                walk.cloud.machine.variables = _variables(exported)
                code, out, err = walk.answer(words[0], words[1:], stdin)
            self.request.sendall(b"".join(f"{each}\0".encode() for each in (code, out, err)))

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        _run(walk, script, server.server_address[1])
        server.shutdown()
    return walk


def _received(connection: socket.socket) -> list[str]:
    """A number of words, the words, and three texts more."""
    text = b""
    while not text.endswith(b"\0") or text.count(b"\0") < int(text.partition(b"\0")[0]) + 4:
        text += connection.recv(1 << 16)
    return text.decode().split("\0")[1:-1]


def _run(walk: Walk, script: str, port: int) -> None:
    folder = walk.cloud.machine.folder
    functions = folder / ".stand-ins.sh"
    names = [name for name in (*PROGRAMS, *walk.others) if name != "in-venv"]
    functions.write_text(_FUNCTIONS + "".join(f'{name}() {{ stand_in {name} "$@"; }}\n' for name in names))
    page = folder / ".page.sh"
    page.write_text(script)
    environment = {
        "PATH": "/usr/bin:/bin",
        "HOME": str(folder),
        "STAND_INS": str(port),
        "STAND_IN_FUNCTIONS": str(functions),
        # A bash that a page starts has the functions too.
        "BASH_ENV": str(functions),
    }
    done = subprocess.run(
        ["bash", "-euo", "pipefail", str(page)], cwd=folder, env=environment, stdin=subprocess.DEVNULL, capture_output=True,
        text=True, check=False, timeout=120,
    )  # fmt: skip
    walk.code, walk.out, walk.error = done.returncode, done.stdout, done.stderr


def _variables(exported: str) -> dict[str, str]:
    """Of ``export -p``: names and values as far as they are on one line."""
    found = {}
    for line in exported.splitlines():
        name, equals, value = line.removeprefix("declare -x ").partition("=")
        if equals and value.startswith('"') and value.endswith('"'):
            found[name] = value[1:-1].replace('\\"', '"').replace("\\$", "$").replace("\\\\", "\\")
    return found


def nightshift_environment(variables: Mapping[str, str]) -> dict[str, str]:
    """What a program of this repository sees of a shell's variables."""
    return {name: value for name, value in variables.items() if name.startswith("NIGHTSHIFT_")} | {"PATH": os.environ["PATH"]}
