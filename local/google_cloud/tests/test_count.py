"""Commands are counted as one types them, and as they run."""

from __future__ import annotations

import re

import pytest

from local.environments import ROOT
from local.google_cloud.count import blocks, count, main, of_page

pytestmark = pytest.mark.unit


def test_a_loop_is_typed_once_and_runs_for_each_word() -> None:
    found = count("export NAMES='a b'\nfor name in $NAMES c; do\n  make $name | grep x && touch $name\ndone\ngcloud version\n")

    assert found.typed == 3
    assert sorted(found.run) == sorted(
        ["make a", "make b", "make c", *["grep x"] * 3, *[f"touch {each}" for each in "abc"], "gcloud version"]
    )


def test_what_is_asked_in_between_runs_too() -> None:
    assert count("export X=$(gcloud projects describe $(whoami))\n").run == ("whoami", "gcloud projects describe")


def test_a_script_hides_its_commands() -> None:
    bundle = 'python3 -m venv upload\nupload/bin/pip install twine\nkeep() { gcloud "$@"; }\nkeep a\nkeep b\n'
    found = count("bash dist/composer/commands.txt\n", bundle)

    assert found.typed == 1
    assert found.run == ("bash dist/composer/commands.txt", "python3 -m venv upload", "pip", "gcloud a", "gcloud b")


def test_a_text_in_between_is_no_command() -> None:
    assert count("cat > /tmp/x <<'END'\nrm -r everything\nEND\n").typed == 1


def test_of_two_clusters_one_is_made() -> None:
    text = "```bash\ngcloud container clusters create a\n```\n\n```bash\ngcloud container clusters create-auto a\n```\n"

    assert blocks(text) == ["gcloud container clusters create a\n"]


def test_shell_that_nobody_can_read_is_refused() -> None:
    with pytest.raises(ValueError, match="syntax error"):
        count("for x in\n")


def test_terraform_takes_the_place_of_nine_commands_in_ten(capsys: pytest.CaptureFixture[str]) -> None:
    """The two paths of this repository, which `main` prints."""
    by_hand, terraform = (of_page(ROOT / page) for page in ("k8s/README.md", "infra/README.md"))

    said = re.search(r"It takes (\d+) typed commands instead of (\d+)", (ROOT / "k8s/README.md").read_text())
    assert said is not None
    assert (int(said[1]), int(said[2])) == (terraform.typed, by_hand.typed)
    assert by_hand.typed >= 9 * terraform.typed
    assert main([]) == 0
    assert f"infra/README.md: {terraform.typed} commands typed" in capsys.readouterr().out
