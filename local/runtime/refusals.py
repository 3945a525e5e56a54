"""Why the API refuses a request: an HTTP status and the Status object of Kubernetes' API conventions."""

from __future__ import annotations

from typing import Any, Final

REASONS: Final = {
    400: "BadRequest",
    404: "NotFound",
    405: "MethodNotAllowed",
    409: "Conflict",
    410: "Expired",
    415: "UnsupportedMediaType",
    422: "Invalid",
}


class Refusal(Exception):
    """reason: if it is not that of `REASONS`."""

    def __init__(self, code: int, message: str, reason: str = "") -> None:
        super().__init__(message)
        self.code = code
        self.reason = reason or REASONS[code]

    def status(self) -> dict[str, Any]:
        return {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": str(self),
            "reason": self.reason,
            "code": self.code,
        }


def not_served() -> Refusal:
    return Refusal(404, "the server could not find the requested resource")


def not_found(resource: str, name: str) -> Refusal:
    return Refusal(404, f'{resource} "{name}" not found')


def invalid(name: str, why: str) -> Refusal:
    return Refusal(422, f'JobSet.jobset.x-k8s.io "{name}" is invalid: {why}')


def conflict(name: str, why: str) -> Refusal:
    return Refusal(409, f'Operation cannot be fulfilled on jobsets.jobset.x-k8s.io "{name}": {why}')
