"""The log of a driver or a subscriber: JSON lines on stdout, as Cloud Logging reads them."""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime


def log_to_stdout() -> None:
    """Sends the log of this process to stdout: one JSON object per line, as Cloud Logging reads it."""
    handler = logging.StreamHandler(sys.stdout)
    handler.setFormatter(_JsonLines())
    logging.basicConfig(level=logging.INFO, handlers=[handler])


class _JsonLines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "severity": record.levelname,
            "message": record.getMessage(),
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)
