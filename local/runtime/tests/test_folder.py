"""What is kept of a JobSet that is gone."""

from __future__ import annotations

from pathlib import Path

import pytest

from local.runtime.folder import ENDED, ENDED_MOST, LOG_BYTES_MOST, SOCKET_PATH_MOST, AgentFolder

pytestmark = pytest.mark.unit


def gone(folder: AgentFolder, name: str, log: bytes) -> None:
    folder.create(name, {"kind": "JobSet"})
    jobset = folder.jobset(name)
    jobset.write_status({"version": 2})
    path = jobset.log("pod-0", "server")
    path.parent.mkdir(parents=True)
    path.write_bytes(log)
    jobset.remove()


def test_its_logs_and_its_status_stay(tmp_path: Path) -> None:
    folder = AgentFolder(tmp_path)

    gone(folder, "night", b"OSError: no such model\n")

    assert folder.names() == []
    (kept,) = (tmp_path / ENDED).iterdir()
    assert kept.name.endswith("-night")
    assert (kept / "logs/pod-0/server.log").read_bytes() == b"OSError: no such model\n"
    assert sorted(each.name for each in kept.iterdir()) == ["logs", "manifest.json", "status.json"]
    assert list((tmp_path / "trash").iterdir()) == []


def test_they_are_bounded(tmp_path: Path) -> None:
    folder = AgentFolder(tmp_path)

    for number in range(ENDED_MOST + 3):
        gone(folder, f"night-{number:02}", b"x" * (LOG_BYTES_MOST + 5) + b"the end" if number == ENDED_MOST else b"")

    kept = sorted((tmp_path / ENDED).iterdir(), key=lambda each: each.name)
    assert [each.name[-8:] for each in kept] == [f"night-{number:02}" for number in range(3, ENDED_MOST + 3)]
    (long,) = (each for each in kept if each.name.endswith(f"-{ENDED_MOST}"))
    body = (long / "logs/pod-0/server.log").read_bytes()
    assert (len(body), body[-7:]) == (LOG_BYTES_MOST, b"the end")


def test_a_disk_that_is_full_keeps_no_jobset(tmp_path: Path) -> None:
    folder = AgentFolder(tmp_path)
    (tmp_path / ENDED).write_text("in the way")

    gone(folder, "night", b"")

    assert folder.names() == []


@pytest.mark.parametrize(
    ("state", "inside"), [(Path("/root/nightshift/.state/runtime"), True), (Path("/home") / ("x" * 80), False)]
)
def test_a_socket_has_room_among_a_pods_temporary_files(state: Path, inside: bool) -> None:
    """However long the names of a JobSet and its pods are, and the path of the state folder."""
    jobset = AgentFolder(state).jobset("package-embeddings-2026-11-20-d81112c1a8b5d351")
    folders = [jobset.temporary(f"{jobset.name}-workers-{number}-0-abcde") for number in range(2)]

    assert len(set(folders)) == 2
    for folder in folders:
        assert len(str(folder / "04ddea15-aaa0-4ce9-9440-c23382e0ab21")) <= SOCKET_PATH_MOST
        assert folder.is_relative_to(state) == inside
