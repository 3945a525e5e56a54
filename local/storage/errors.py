"""The refusals, as exceptions that either API can phrase in its own terms."""

from __future__ import annotations


class ApiError(Exception):
    """A refused request: HTTP status, the JSON API's ``reason``, the XML API's ``Code``, and a sentence."""

    def __init__(self, status: int, reason: str, code: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.reason = reason
        self.code = code
        self.message = message


def no_such_bucket(bucket: str) -> ApiError:
    return ApiError(404, "notFound", "NoSuchBucket", f"The specified bucket does not exist: {bucket}")


def no_such_object(bucket: str, name: str) -> ApiError:
    return ApiError(404, "notFound", "NoSuchKey", f"No such object: {bucket}/{name}")


def no_such_upload(upload: str) -> ApiError:
    return ApiError(404, "notFound", "NoSuchUpload", f"No such upload: {upload}")


def conflict(message: str) -> ApiError:
    return ApiError(409, "conflict", "Conflict", message)


def precondition_failed(condition: str) -> ApiError:
    message = f"At least one of the pre-conditions you specified did not hold: {condition}"
    return ApiError(412, "conditionNotMet", "PreconditionFailed", message)


def not_modified() -> ApiError:
    return ApiError(304, "notModified", "NotModified", "The object has not changed from what the request says.")


def not_implemented(request: str) -> ApiError:
    """For what Cloud Storage can do and this emulator cannot. Not 501, which some clients retry for minutes."""
    message = f"This emulator has no copies, compositions or batches ({request}). Read and write object by object."
    return ApiError(400, "notImplemented", "NotImplemented", message)


def invalid(message: str) -> ApiError:
    return ApiError(400, "invalid", "InvalidArgument", message)
