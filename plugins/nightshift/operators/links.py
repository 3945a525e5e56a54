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
        bucket = Settings.from_environment().bucket
        if emulator := os.environ.get("STORAGE_EMULATOR_HOST"):
            return f"{emulator.rstrip('/')}/storage/v1/b/{bucket}/o?prefix={quote(prefix, safe='')}/"
        return f"https://console.cloud.google.com/storage/browser/{bucket}/{quote(prefix)}"
