"""The refusals, as exceptions that the gRPC layer turns into a status."""

from __future__ import annotations

from collections.abc import Mapping

import grpc


class Refusal(Exception):
    """A refused request: a gRPC status code, a sentence, and for failed acks what went wrong with each.

    failed_acks: ack id -> a name such as ``PERMANENT_FAILURE_INVALID_ACK_ID``, which clients read from the status's details.
    """

    def __init__(self, code: grpc.StatusCode, message: str, failed_acks: Mapping[str, str] | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.failed_acks = dict(failed_acks or {})


def not_found(name: str) -> Refusal:
    return Refusal(grpc.StatusCode.NOT_FOUND, f"Resource not found (resource={name.rpartition('/')[2]}).")


def already_exists(name: str) -> Refusal:
    short = name.rpartition("/")[2]
    return Refusal(grpc.StatusCode.ALREADY_EXISTS, f"Resource already exists in the project (resource={short}).")


def invalid(message: str) -> Refusal:
    return Refusal(grpc.StatusCode.INVALID_ARGUMENT, message)


def failed_precondition(message: str) -> Refusal:
    return Refusal(grpc.StatusCode.FAILED_PRECONDITION, message)


def unavailable(message: str) -> Refusal:
    return Refusal(grpc.StatusCode.UNAVAILABLE, message)


def not_implemented(feature: str) -> Refusal:
    """For what Pub/Sub can do and this emulator cannot."""
    return Refusal(grpc.StatusCode.UNIMPLEMENTED, f"This emulator has no {feature}.")


def failed_acks(reasons: Mapping[str, str]) -> Refusal:
    """Of a subscription with exactly-once delivery; page: Exactly-once delivery."""
    message = (
        "Some acknowledgement ids in the request were invalid. This could be because the acknowledgement ids have expired or "
        "the acknowledgement ids were malformed."
    )
    return Refusal(grpc.StatusCode.INVALID_ARGUMENT, message, reasons)
