"""What the mutator does to a file, and its list of survivors."""

from __future__ import annotations

import shutil
from pathlib import Path
from textwrap import dedent

import pytest

from local.terraform import build, mutants
from local.terraform.build import Tools
from local.terraform.tofu import Workspace

pytestmark = pytest.mark.unit

FILE = dedent(
    """\
    # A comment with a { bracket.
    resource "google_storage_bucket" "runs" {
      name = var.bucket
      labels = {
        a = "b"
      }

      encryption {
        key = google_kms.this.id
      }
      dynamic "rule" {
        for_each = []
        content {
          age = 1
        }
      }
    }
    variable "bucket" {
      type        = string
      description = <<-END
        A text = with { signs.
      END
    }
    resource "google_storage_bucket_iam_member" "x" {
      role = "roles/storage.admin"
    }
    """
)


def texts(kind: str) -> dict[str, str]:
    """Name -> the lines that a mutant of that kind puts in the place of others."""
    return {each.name: each.text for each in mutants.mutants("main.tf", FILE) if each.kind == kind}


def test_every_argument_and_block_is_a_statement() -> None:
    found = [" / ".join((*each.around, each.name)) for each in mutants.statements(FILE)]

    bucket = "resource google_storage_bucket runs"
    assert found == [
        f"{bucket} / name",
        f"{bucket} / labels",
        f"{bucket} / encryption / key",
        f"{bucket} / encryption",
        f"{bucket} / dynamic rule / for_each",
        f"{bucket} / dynamic rule / content / age",
        f"{bucket} / dynamic rule / content",
        f"{bucket} / dynamic rule",
        bucket,
        "variable bucket / type",
        "variable bucket / description",
        "variable bucket",
        "resource google_storage_bucket_iam_member x / role",
        "resource google_storage_bucket_iam_member x",
    ]


def test_what_is_done_to_them() -> None:
    bucket = "main.tf: resource google_storage_bucket runs"
    assert texts("renamed")[f"{bucket} / name: renamed"] == "  name_x = var.bucket\n"
    assert texts("renamed")[f"{bucket} / dynamic rule: renamed"].startswith('  dynamic "rule_x" {\n')
    assert texts("retyped")[f"{bucket} / name: retyped"] == '  name = ["wrong"]\n'
    assert texts("retyped")[f"{bucket} / labels: retyped"] == '  labels = "wrong"\n'
    assert texts("dropped")[f"{bucket} / encryption: dropped"] == ""
    assert texts("broken") == {
        f"{bucket} / name: broken var.bucket": "  name = var.bucket_x\n",
        f"{bucket} / encryption / key: broken google_kms.this.id": "    key = google_kms.this.id_x\n",
    }
    assert list(texts("other role").values()) == ['  role = "roles/viewer"\n']
    assert not [name for name in texts("dropped") if "description" in name]


def test_several_at_once_are_in_blocks_of_their_own(tmp_path: Path) -> None:
    (tmp_path / "main.tf").write_text(FILE)
    workspace = Workspace(Tools(tmp_path, tmp_path, tmp_path), tmp_path)
    found = {each.name: each for each in mutants.mutants("main.tf", FILE)}
    labels = found["main.tf: resource google_storage_bucket runs / labels: dropped"]
    role = found["main.tf: resource google_storage_bucket_iam_member x / role: renamed"]

    [batch] = mutants.batches([labels, role], 2)
    with mutants.changed(workspace, batch) as places:
        text = (tmp_path / "main.tf").read_text()
        lines = text.splitlines()
        assert [lines[places[each].start - 1] for each in batch] == [
            'resource "google_storage_bucket" "runs" {',
            'resource "google_storage_bucket_iam_member" "x" {',
        ]
        assert "labels" not in text
        assert "role_x" in text
    assert (tmp_path / "main.tf").read_text() == FILE
    assert len(mutants.batches([labels, found["main.tf: resource google_storage_bucket runs / name: renamed"]], 2)) == 2


def test_survivors_are_places_of_infra() -> None:
    assert set(mutants.reasons()) <= {each.name for each in mutants.every()}


@pytest.mark.parametrize(("program", "named"), [("go", "there is no 'go'"), ("npm", "there is no 'npm'")])
def test_without_go_or_npm_it_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, program: str, named: str) -> None:
    monkeypatch.setenv("NIGHTSHIFT_CACHE", str(tmp_path))
    monkeypatch.setattr(shutil, "which", lambda name, path=None: None if name == program else f"/bin/{name}")
    if program == "npm":
        monkeypatch.setattr(build, "without_go", lambda what: None)

    assert named in str(build.obstacle())
