"""What says that a text is not to be rendered in this process, or cannot be in another one."""

from __future__ import annotations


class Large(BaseException):
    """The rendering meets more than this process computes with. No error of the template: code that handles errors must not
    see it."""


class NoProcess(OSError):
    """There is no process for the rendering of a row: the machine's fault, not the row's."""
