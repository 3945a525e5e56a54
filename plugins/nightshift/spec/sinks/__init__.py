"""The sinks of streams: one file each, with the class of the section ``sink:``, its checks and what it needs of a deployment.

To add a sink, add its file, its class to `Sink`, and the module of `nightshift.stream` that makes it.
"""

from __future__ import annotations

from typing import Final, get_args

from nightshift.fields.mistakes import nearest
from nightshift.spec.sinks.base import SinkSection
from nightshift.spec.sinks.files import FileSink
from nightshift.spec.sinks.postgres import TableSink

Sink = TableSink | FileSink
SINKS: Final[tuple[type[SinkSection], ...]] = get_args(Sink)
"""The first is the one of a section that shows none."""


def sink_model(value: object) -> type[SinkSection]:
    """What a section `sink` is to be read as, by its keys: one of them may be misspelt."""
    default, *others = SINKS
    if isinstance(value, dict):
        shown = [each for each in SINKS if each.KEY in value]
        if len(shown) == 1:
            return shown[0]
        for each in others:
            shared = {name for other in SINKS if other is not each for name in other.model_fields}
            if any(nearest(str(key), sorted(each.model_fields.keys() - shared)) for key in value):
                return each
    return default
