"""The offline model cache, read by the library that vLLM reads it with."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from local import hub

pytestmark = pytest.mark.integration

ROOT = Path(__file__).resolve().parents[3]


def test_a_revision_is_found_without_a_network(tmp_path: Path) -> None:
    model = tmp_path / "model"
    (model / "1_Pooling").mkdir(parents=True)
    (model / "config.json").write_text("{}")
    (model / "1_Pooling" / "config.json").write_text('{"inner": true}')
    hub.lay_out(model, tmp_path / "hub")
    hub.lay_out(model, tmp_path / "hub")
    code = "import sys, huggingface_hub as h; print(h.hf_hub_download(sys.argv[1], sys.argv[3], revision=sys.argv[2]))"
    for name in ("config.json", "1_Pooling/config.json"):
        found = subprocess.run(
            [str(ROOT / ".envs/server/bin/python"), "-c", code, hub.REPOSITORY, hub.REVISION, name],
            env={"HF_HUB_OFFLINE": "1", "HF_HUB_CACHE": str(tmp_path / "hub")},
            capture_output=True,
            text=True,
        )
        assert found.returncode == 0, found.stderr
        assert Path(found.stdout.strip()).read_text() == (model / name).read_text()


def test_the_snapshots_name_depends_on_names_and_contents(tmp_path: Path) -> None:
    commits = set()
    for case, files in enumerate([{"a": "1"}, {"a": "2"}, {"b": "1"}, {"a": "1", "b": "1"}]):
        model = tmp_path / f"model{case}"
        model.mkdir()
        for name, content in files.items():
            (model / name).write_text(content)
        hub.lay_out(model, tmp_path / f"hub{case}", revision="main")
        (snapshot,) = (tmp_path / f"hub{case}").glob("models--*/snapshots/*")
        assert sorted(path.name for path in snapshot.iterdir()) == sorted(files)
        commits.add(snapshot.name)
    assert len(commits) == 4
