"""The configuration file of the local runtime's agent: what it may have, and the message for what it may not."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from local.runtime.config import AgentConfig, AgentConfigError, ImageConfig, load_config

pytestmark = pytest.mark.unit


def test_full_file(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    image = {"path": ["/bin"], "env": {"A": "b"}, "entrypoint": ["run"]}
    path.write_text(json.dumps({"images": {"i:1": image}, "env": {"C": "d"}, "cores": 8, "max_pods": 2, "node_name": "n"}))

    assert load_config(path) == AgentConfig({"i:1": ImageConfig(("/bin",), {"A": "b"}, ("run",))}, {"C": "d"}, 8, 2, "n")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{", "Expecting property name"),
        ("[]", "not a mapping"),
        ('{"image": {}}', "unknown key 'image'; known: images, env"),
        ('{"images": []}', "images: not a mapping"),
        ('{"images": {"i:1": {"paths": []}}}', "images['i:1']: unknown key 'paths'"),
        ('{"images": {"i:1": {"path": ["bin"]}}}', "'bin' is not absolute"),
        ('{"images": {"i:1": {"path": "/bin"}}}', "path: not a list of texts"),
        ('{"images": {"i:1": {"env": {"A": 1}}}}', "env: not a mapping of texts"),
        ('{"env": {"A": null}}', "env: not a mapping of texts"),
        ('{"cores": 0}', "cores: 0 is not a whole number above 0"),
        ('{"cores": 1.5}', "cores: 1.5 is not a whole number above 0"),
        ('{"max_pods": 0}', "max_pods: 0 is not a whole number above 0"),
        ('{"pod_backoff_s": "1"}', "pod_backoff_s: '1' is not a number of seconds"),
        ('{"poll_s": -1}', "poll_s: -1 is not a number of seconds"),
        ('{"node_name": 1}', "node_name: not a text"),
    ],
)
def test_mistakes_are_named(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "config.json"
    path.write_text(text)

    with pytest.raises(AgentConfigError) as caught:
        load_config(path)

    assert str(caught.value).startswith(str(path))
    assert says in str(caught.value)


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(AgentConfigError, match="No such file"):
        load_config(tmp_path / "none.json")


@pytest.mark.parametrize(
    ("cores", "pods", "share"),
    [(8, 1, 8), (8, 2, 4), (8, 3, 2), (8, 4, 2), (8, 100, 2), (3, 2, 1), (2, 4, 1), (1, 4, 1)],
    ids=lambda value: str(value),
)
def test_pods_that_run_at_once_share_the_cores(cores: int, pods: int, share: int) -> None:
    """Of 100 pods, four run at once; no pod gets less than one core."""
    assert AgentConfig(cores=cores, max_pods=4).share(pods) == share


def test_the_cores_are_those_that_the_agent_may_use() -> None:
    """A process may be kept to a part of the machine's."""
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(allowed)})
    try:
        assert AgentConfig().cores == 1
    finally:
        os.sched_setaffinity(0, allowed)
