"""``python -m nightshift.cli`` is the command ``nightshift``."""

from nightshift.cli import entry

entry()
