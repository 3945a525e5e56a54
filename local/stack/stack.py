"""`Stack`: starts, finds and stops a stack from another process."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from local.environments import SetupError
from local.package import installed
from local.stack import airflow, environment, marks
from local.stack.folder import ROOT, Folder
from local.stack.kubernetes import Kubernetes
from local.stack.parts import NAMES, NIGHT

DEFAULT_STATE: Final = ROOT / ".state"
UP_S: Final = 900.0
DOWN_S: Final = 90.0
POLL_S: Final = 0.1
LOG_TAIL: Final = 3000


class StackError(Exception):
    """The stack cannot be started or used as asked; the message says why and what to do."""


class StackDown(StackError):
    """No stack is up in this state folder."""


class StackBusy(StackError):
    """The stack belongs to another process and will end with it."""


class Stack:
    """The stack of one state folder, no matter which process started it.

    ``with Stack(state) as stack:`` uses a stack that ``up`` started and leaves it up. If none is up, it starts one that is
    tied to this process: it ends with the block, or with the process, however it dies.

    state: its folder. parts: some of `parts.NAMES`; None: `parts.NIGHT`. dags, airflow_environment, by_the_clock: what its
    Airflow is (`airflow.Choice`). kubernetes: what runs the JobSets instead of the local runtime. say: gets one line per event.
    """

    def __init__(
        self,
        state: Path = DEFAULT_STATE,
        *,
        parts: Sequence[str] | None = None,
        dags: Path = ROOT / "dags",
        airflow_environment: str = airflow.ENVIRONMENTS[0],
        by_the_clock: bool = False,
        kubernetes: Kubernetes | None = None,
        say: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._folder = Folder.at(state)
        self._names = tuple(parts or (name for name in NIGHT if name != "agent" or kubernetes is None))
        self._choice = airflow.Choice(dags.resolve(), airflow_environment, by_the_clock)
        self._kubernetes = kubernetes
        self._say = say
        self._process: subprocess.Popen[bytes] | None = None
        self._tie: int | None = None

    @classmethod
    def attach(cls, state: Path = DEFAULT_STATE) -> Stack:
        """The stack that is up in `state`. Raises StackDown."""
        document = cls(state).document()
        parts, dags = tuple(document["parts"]), Path(document["dags"])
        return cls(state, parts=parts, dags=dags, airflow_environment=document["airflow_environment"])

    def __enter__(self) -> Self:
        self.up(tied=True)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._ours():
            self.down()

    @property
    def state(self) -> Path:
        return self._folder.path

    def log(self, name: str) -> Path:
        """The log of a part, or of ``supervisor``."""
        return self._folder.log(name)

    def up(self, *, tied: bool = False) -> None:
        """Returns when every part is healthy. Does nothing if they are.

        tied: a stack started here ends with this process. One that is already up stays as it is.
        Raises StackError if a part does not start, StackBusy.
        """
        unknown = set(self._names) - set(NAMES)
        if unknown:
            raise StackError(f"there is no part {sorted(unknown)[0]!r}; there are {', '.join(NAMES)}")
        began = time.monotonic()
        if not self._usable():
            self._spawn(tied)
        try:
            self._await_health(began)
        except BaseException:
            if self._ours():
                self.down()
            raise
        if "storage" in self._names:
            make_bucket(self.environment()["STORAGE_EMULATOR_HOST"], environment.PROJECT, environment.BUCKET)

    def down(self) -> None:
        """Stops the stack, no matter which process started it, and kills every process that carries its mark."""
        marked = {marks.STACK: str(self._folder.path)}
        if not self._end_supervisor(marked):
            self._say("the supervisor does not stop; killing it")
        if self._process is not None:
            self._process.wait()
            self._process = None
        if self._tie is not None:
            os.close(self._tie)
            self._tie = None
        strays = marks.sweep(marked)
        if strays:
            self._say(f"killed {strays} stray processes")
        self._folder.document.unlink(missing_ok=True)

    def document(self) -> dict[str, Any]:
        """stack.json of the living supervisor. Raises StackDown."""
        document = self._folder.read()
        if document is None:
            raise StackDown(f"no stack is up in {self._folder.path}: {self.make('up')}")
        return document

    def healthy(self) -> bool:
        """Whether the stack is up and all its parts are healthy."""
        try:
            document = self.document()
        except StackDown:
            return False
        return document["state"] == "up" and all(part["state"] == "healthy" for part in document["parts"].values())

    def environment(self) -> dict[str, str]:
        """Variables for a client: emulators, NIGHTSHIFT_*, AIRFLOW_*; they go over its own. Raises StackDown.

        They do not include the stack's mark, so a client is not killed with the stack.
        """
        return dict(self.document()["environment"])

    def airflow(self) -> dict[str, str]:
        """``url``, ``user`` and ``password`` of Airflow. Raises StackDown, or StackError if Airflow is not a part."""
        document = self.document()
        if "airflow" not in document:
            raise StackError("Airflow is not a part of this stack")
        return dict(document["airflow"])

    def pids(self, name: str) -> list[int]:
        """Living processes of a part and of all it started; or of ``supervisor``, ``reaper``, or one of Airflow's components
        (``scheduler``, ``dag-processor``, ``api-server``, ``triggerer``: its main process). Raises StackDown."""
        document = self.document()
        if name in airflow.COMPONENTS:
            standalone = document["parts"]["airflow"]["pid"]
            return airflow.component_pids(standalone, name) if standalone else []
        if name in ("supervisor", "reaper"):
            return [document[name]] if document[name] else []
        return marks.marked({marks.STACK: str(self._folder.path), marks.PART: name})

    def processes(self) -> list[int]:
        """Every living process that carries the stack's mark, even if the stack is down."""
        return marks.marked({marks.STACK: str(self._folder.path)})

    def _usable(self) -> bool:
        """Whether a usable stack is up; if one is stopping, waits for its end. Raises StackBusy, StackError."""
        deadline = time.monotonic() + DOWN_S
        while self._folder.held() is not None:
            document = self._folder.read()
            owner = document["owner"] if document else None
            if document and document["state"] == "up" and (owner is None or _alive(owner)):
                self._must_be_usable(owner)
                self._must_match(document)
                return True
            if time.monotonic() > deadline:
                raise StackError(f"the stack in {self._folder.path} does not stop: {self.make('down')}")
            time.sleep(POLL_S)
        return False

    def _must_be_usable(self, owner: int | None) -> None:
        if owner not in (None, os.getpid()):
            raise StackBusy(f"the stack in {self._folder.path} belongs to process {owner} and ends with it")

    def _ours(self) -> bool:
        """Whether this object started the current stack. If two start at once, one supervisor gets the lock."""
        return self._process is not None and self._folder.held() in (None, self._process.pid)

    def _must_match(self, document: dict[str, Any]) -> None:
        missing = [name for name in self._names if name not in document["parts"]]
        if missing:
            raise StackError(f"the stack in {self._folder.path} is up without {', '.join(missing)}: {self.make('down')}")
        if "airflow" in self._names and document["dags"] != str(self._choice.dags):
            raise StackError(
                f"the stack in {self._folder.path} is up with the DAG folder {document['dags']}: {self.make('down')}"
            )
        # A stack that an earlier version started has neither of these.
        if "airflow" in self._names and document.get("airflow_environment") != self._choice.environment:
            raise StackError(f"the stack in {self._folder.path} is up with another environment of Airflow: {self.make('down')}")
        if "airflow" in self._names and document.get("package") != self._package():
            raise StackError(
                f"the stack in {self._folder.path} is up with nightshift as it was before a file of it changed: "
                f"{self.make('down')}"
            )
        gateway = self._kubernetes.gateway if self._kubernetes else None
        if "airflow" in self._names and document["gateway"] != gateway:
            runtime = f"the cluster at {document['gateway']}" if document["gateway"] else "the local runtime"
            raise StackError(f"the stack in {self._folder.path} is up with {runtime}: {self.make('down')}")

    def make(self, target: str) -> str:
        """The command of this clone that starts or stops this stack."""
        usual = self._folder.path == Folder.at(DEFAULT_STATE).path
        return f"make {target}" if usual else f"make {target} STATE={shlex.quote(str(self._folder.path))}"

    def _package(self) -> str:
        try:
            return str(installed())
        except SetupError as error:
            raise StackError(str(error)) from error

    def _spawn(self, tied: bool) -> None:
        self._folder.make()
        life = uuid.uuid4().hex
        command = [sys.executable, "-m", "local.stack.supervisor", "--state", str(self._folder.path), "--life", life]
        command += ["--parts", ",".join(self._names), "--dags", str(self._choice.dags)]
        command += ["--airflow", self._choice.environment, *(["--by-the-clock"] if self._choice.by_the_clock else [])]
        if self._kubernetes:
            self._kubernetes.write(self._folder.kubernetes)
            command += ["--kubernetes", str(self._folder.kubernetes)]
        inherited: tuple[int, ...] = ()
        if tied:
            read_end, self._tie = os.pipe()
            inherited = (read_end,)
            command += ["--tie", str(read_end), "--owner", str(os.getpid())]
        marked = {marks.STACK: str(self._folder.path), marks.LIFE: life, marks.PART: "supervisor"}
        # The supervisor passes its environment on: it cleans the base again, with the same result.
        with open(self._folder.log("supervisor"), "ab") as output:
            self._process = subprocess.Popen(
                command,
                cwd=ROOT,
                env={**environment.base(), **marked},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                pass_fds=inherited,
            )
        for descriptor in inherited:
            os.close(descriptor)

    def _await_health(self, began: float) -> None:
        seen: set[str] = set()
        while True:
            document = self._folder.read()
            reports = document["parts"] if document and document["state"] == "up" else {}
            if document and not self._ours():
                # Another process was faster.
                self._must_be_usable(document["owner"])
                self._must_match(document)
            for name in self._names:
                report = reports.get(name, {"state": "starting"})
                if report["state"] == "failed":
                    raise StackError(f"{name} does not start ({report['error']}); {self._tail(name)}")
                if report["state"] == "healthy" and name not in seen:
                    seen.add(name)
                    self._say(f"{name:<9} {report['address']}  healthy after {time.monotonic() - began:.1f} s")
            if len(seen) == len(self._names):
                return
            if self._ended_early():
                raise StackError(f"the supervisor has ended; {self._tail('supervisor')}")
            if time.monotonic() - began > UP_S:
                waited = ", ".join(name for name in self._names if name not in seen)
                raise StackError(f"not healthy after {UP_S:.0f} s: {waited}; logs are in {self._folder.log('x').parent}")
            time.sleep(POLL_S)

    def _ended_early(self) -> bool:
        """Whether there is no supervisor to wait for. One that lost a race for the lock leaves the winner."""
        if self._process is not None and self._process.poll() is None:
            return False
        if self._folder.held() is None:
            return True
        self._process = None
        return False

    def _end_supervisor(self, marked: dict[str, str]) -> bool:
        """Signals the supervisor to end and waits for it; returns whether it ended in time.

        A supervisor that was waiting for the lock then takes it, and gets the signal, too. The lock alone does not show the
        end: it is free a moment before the process is gone.
        """
        deadline = time.monotonic() + DOWN_S
        seen: set[int] = set()
        while (holder := self._folder.held()) is not None or any(marks.carries(pid, marked) for pid in seen):
            if holder and holder not in seen:
                marks.kill(holder, marked, signal.SIGTERM)
                seen.add(holder)
            if time.monotonic() > deadline:
                return False
            time.sleep(POLL_S)
        return True

    def _tail(self, name: str) -> str:
        file = self._folder.log(name)
        end = file.read_text(errors="replace")[-LOG_TAIL:] if file.exists() else ""
        return f"the end of {file}:\n{end}"


def make_bucket(storage: str, project: str, name: str) -> None:
    """Makes a bucket in the storage emulator at the address `storage`, unless it exists. Raises StackError."""
    request = urllib.request.Request(
        f"{storage}/storage/v1/b?project={project}", json.dumps({"name": name}).encode(), {"content-type": "application/json"}
    )
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        opener.open(request, timeout=30).close()
    except urllib.error.HTTPError as error:
        if error.code != 409:
            raise StackError(f"cannot make the bucket {name}: {error}") from error


def _alive(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()
