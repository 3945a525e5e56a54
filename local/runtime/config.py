"""The agent's configuration, one JSON file: the stand-ins for images and for the node.

{"images": {"nightshift/driver:0.3.0": {"path": ["/abs/.venv/bin"], "env": {"A": "b"}, "entrypoint": ["prog"]}},
 "env": {"STORAGE_EMULATOR_HOST": "http://127.0.0.1:4443"},
 "max_pods": 2}
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any


class AgentConfigError(ValueError):
    """The configuration file is wrong; the message names the file and the key."""


@dataclass(frozen=True)
class ImageConfig:
    """What a container of one image gets.

    path: folders put in front of PATH. env: variables; the manifest's win. entrypoint: what runs if the container has no
    command, like an image's ENTRYPOINT.
    """

    path: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    entrypoint: tuple[str, ...] = ()


@dataclass(frozen=True)
class AgentConfig:
    """One node.

    images: by the exact name that manifests use. env: variables of every container; an image's and the manifest's win.
    cores: how many its pods share; by default as many as the agent itself may use (its affinity).
    max_pods: pods that run at once; others stay Pending. node_name: for spec.nodeName.
    pod_backoff_s: wait between a pod's failure and its replacement, doubling to 10 min.
    restart_backoff_s: wait before the second restart of a sidecar, doubling to 5 min (the first restart is immediate).
    shutdown_grace_s: longest grace period of pods when a signal ends the agent, as on GKE Spot.
    poll_s: how often the agent checks for requests.
    host, port: of its API: the address of this machine at which clients reach it; 0 for any free port.
    """

    images: Mapping[str, ImageConfig] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)
    cores: int = field(default_factory=lambda: len(os.sched_getaffinity(0)))
    max_pods: int = 110
    node_name: str = field(default_factory=socket.gethostname)
    pod_backoff_s: float = 10.0
    restart_backoff_s: float = 10.0
    shutdown_grace_s: float = 15.0
    poll_s: float = 0.2
    host: str = "127.0.0.1"
    port: int = 0

    def share(self, pods: int) -> int:
        """The cores for each of `pods` pods that want to run at once, at least 1; at most `max_pods` ever do."""
        return max(1, self.cores // min(pods, self.max_pods))


def load_config(path: Path) -> AgentConfig:
    """Raises AgentConfigError for a file that cannot be read, an unknown key or a value of the wrong type."""
    try:
        values = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise AgentConfigError(f"{path}: {error}") from error
    _check_keys(values, AgentConfig, str(path))
    images = values.get("images", {})
    env = values.get("env", {})
    _check_strings(env, f"{path}: env")
    if not isinstance(images, dict):
        raise AgentConfigError(f"{path}: images: not a mapping")
    for key, value in values.items():
        if key.endswith("_s") and (not isinstance(value, int | float) or isinstance(value, bool) or value < 0):
            raise AgentConfigError(f"{path}: {key}: {value!r} is not a number of seconds")
    for key in ("cores", "max_pods"):
        if not isinstance(values.get(key, 1), int) or values.get(key, 1) < 1:
            raise AgentConfigError(f"{path}: {key}: {values[key]!r} is not a whole number above 0")
    if not isinstance(values.get("port", 0), int) or not 0 <= values.get("port", 0) < 1 << 16:
        raise AgentConfigError(f"{path}: port: {values['port']!r} is not a port")
    for key in ("node_name", "host"):
        if not isinstance(values.get(key, ""), str):
            raise AgentConfigError(f"{path}: {key}: not a text")
    read = {name: _read_image(image, f"{path}: images[{name!r}]") for name, image in images.items()}
    return AgentConfig(**{**values, "images": read, "env": env})


def _read_image(value: Any, where: str) -> ImageConfig:
    _check_keys(value, ImageConfig, where)
    _check_strings(value.get("env", {}), f"{where}: env")
    for key in ("path", "entrypoint"):
        words = value.get(key, [])
        if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
            raise AgentConfigError(f"{where}: {key}: not a list of texts")
    for folder in value.get("path", []):
        if not os.path.isabs(folder):  # noqa: PTH117 -- a text, not a path of this process
            raise AgentConfigError(f"{where}: path: {folder!r} is not absolute")
    return ImageConfig(tuple(value.get("path", [])), value.get("env", {}), tuple(value.get("entrypoint", [])))


def _check_keys(value: Any, kind: type[AgentConfig] | type[ImageConfig], where: str) -> None:
    if not isinstance(value, dict):
        raise AgentConfigError(f"{where}: not a mapping")
    known = [entry.name for entry in fields(kind)]
    for key in value:
        if key not in known:
            raise AgentConfigError(f"{where}: unknown key {key!r}; known: {', '.join(known)}")


def _check_strings(value: Any, where: str) -> None:
    if not isinstance(value, dict) or not all(isinstance(text, str) for text in value.values()):
        raise AgentConfigError(f"{where}: not a mapping of texts")
