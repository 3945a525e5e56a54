"""Why a page cannot be shown, in the words of the page."""

from __future__ import annotations


class PageError(Exception):
    """The message says what is wrong and what to do. status: of HTTP."""

    status = 500


class Refused(PageError):
    """A write that may come from another site."""

    status = 403


class NotThere(PageError):
    """There is no such run, or it cannot be read."""

    status = 404


class NotPossible(PageError):
    """What a user asked for does not fit the state of the run."""

    status = 409


class NoAnswer(PageError):
    """The bucket, or the settings that lead to it, fail."""

    status = 503
