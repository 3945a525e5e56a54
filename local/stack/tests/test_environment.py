"""What the stack's processes inherit from the shell that starts them."""

from __future__ import annotations

from pathlib import Path

import pytest

from local import environments, hub, models
from local.stack import environment

pytestmark = pytest.mark.unit


def test_the_cache_is_the_callers_and_its_other_settings_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    """Or the stack would look for environments and models in another folder than the one that was just filled."""
    monkeypatch.setenv("NIGHTSHIFT_CACHE", "/mnt/large")
    monkeypatch.setenv("NIGHTSHIFT_BUCKET", "of-another-deployment")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")

    inherited = environment.base()

    assert inherited["NIGHTSHIFT_CACHE"] == "/mnt/large"
    assert not {"NIGHTSHIFT_BUCKET", "HF_HUB_OFFLINE"} & inherited.keys()


@pytest.mark.parametrize("made", [False, True])
def test_who_misses_a_model_is_told_where_it_was_looked_for_and_a_command_that_makes_it_there(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, made: bool
) -> None:
    """Another cache, or another interpreter, has another folder. One that counts as made would be left as it is."""
    monkeypatch.setenv("NIGHTSHIFT_CACHE", str(tmp_path))
    folder = environments.environment_dir("server")
    if made:
        (folder / "bin").mkdir(parents=True)
        (folder / ".complete").touch()

    for ask in (hub.ensure, lambda: models.ensure(models.TINY_LLAMA)):
        with pytest.raises(FileNotFoundError) as raised:
            ask()

        said, _, command = str(raised.value).partition("; make it: ")
        assert said.endswith(f"looked in {folder}")
        assert (f"rm -r {folder} && " in command) == made
        assert f"NIGHTSHIFT_CACHE={tmp_path} " in command
        assert command.endswith("local/environments.py server")
