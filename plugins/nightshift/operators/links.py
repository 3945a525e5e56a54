"""The button on a task's page that opens the run's folder."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING
from urllib.parse import quote

from airflow.sdk import BaseOperatorLink

from nightshift.settings import Settings

if TYPE_CHECKING:
    from airflow.sdk import BaseOperator
    from airflow.sdk.types import TaskInstanceKey


class RunFolderLink(BaseOperatorLink):
    """Opens the run's folder: in the Cloud console, or in the emulator's listing if STORAGE_EMULATOR_HOST is set."""

    @property
    def name(self) -> str:
        return "Run folder"

    def get_link(self, operator: BaseOperator, *, ti_key: TaskInstanceKey) -> str:
        prefix = getattr(operator, "run_prefix", None)
        if not prefix:
            return ""
        return folder_address(Settings.from_environment().bucket, prefix, os.environ.get("STORAGE_EMULATOR_HOST", ""))


def folder_address(bucket: str, prefix: str, emulator: str = "") -> str:
    """Where a browser shows a run's folder. emulator: the address of a storage emulator, if it is there."""
    if emulator:
        return f"{emulator.rstrip('/')}/storage/v1/b/{bucket}/o?prefix={quote(prefix, safe='')}/"
    return f"https://console.cloud.google.com/storage/browser/{bucket}/{quote(prefix)}"
