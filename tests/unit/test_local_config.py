"""The configuration file of the local runtime's agent: what it may say, and the message for what it may not."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from local.runtime.config import Config, ConfigError, Image, load_config

pytestmark = pytest.mark.unit


def test_full_file(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    image = {"path": ["/bin"], "env": {"A": "b"}, "entrypoint": ["run"]}
    path.write_text(json.dumps({"images": {"i:1": image}, "env": {"C": "d"}, "max_pods": 2, "node_name": "n", "poll_s": 0.5}))

    assert load_config(path) == Config({"i:1": Image(("/bin",), {"A": "b"}, ("run",))}, {"C": "d"}, 2, "n", poll_s=0.5)


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
        ('{"max_pods": 0}', "max_pods: 0 is not a whole number above 0"),
        ('{"pod_backoff_s": "1"}', "pod_backoff_s: '1' is not a number of seconds"),
        ('{"poll_s": -1}', "poll_s: -1 is not a number of seconds"),
        ('{"node_name": 1}', "node_name: not a text"),
    ],
)
def test_mistakes_are_named(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "config.json"
    path.write_text(text)

    with pytest.raises(ConfigError) as caught:
        load_config(path)

    assert str(caught.value).startswith(str(path))
    assert says in str(caught.value)


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        load_config(tmp_path / "none.json")
