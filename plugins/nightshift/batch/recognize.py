"""Whether a file is a batch file at all. One bad line costs no other, but a file of which no line can be sent is a mistake."""

from __future__ import annotations

import json
from typing import Final

from nightshift.batch.lines import BOM, looks_like, parse_line

LINE_BYTES_MOST: Final = 128 << 20
"""Of one line: it is in memory several times. No server takes a request of this size."""
START_BYTES: Final = 6
GZIP: Final = b"\x1f\x8b"
ZSTD: Final = b"\x28\xb5\x2f\xfd"
_STARTS: Final = (
    (b"\xff\xfe", "it is UTF-16 or UTF-32. Write it as UTF-8: iconv -f UTF-16 -t UTF-8 IN > OUT"),
    (b"\xfe\xff", "it is UTF-16. Write it as UTF-8: iconv -f UTF-16 -t UTF-8 IN > OUT"),
    (b"\x00\x00\xfe\xff", "it is UTF-32. Write it as UTF-8: iconv -f UTF-32 -t UTF-8 IN > OUT"),
    (GZIP, "it is compressed by gzip twice. Unpack it"),
    (ZSTD, "it is compressed by zstd twice. Unpack it"),
    (b"BZh", "it is compressed by bzip2. Unpack it: bzip2 -dc IN | nightshift batch -i - ..."),
    (b"\xfd7zXZ\x00", "it is compressed by xz. Unpack it: xz -dc IN | nightshift batch -i - ..."),
    (b"\x04\x22\x4d\x18", "it is compressed by lz4. Unpack it: lz4 -dc IN | nightshift batch -i - ..."),
    (b"PK\x03\x04", "it is a zip archive. Unpack it: unzip -p IN | nightshift batch -i - ..."),
)
_ARRAY: Final = "it is a JSON array. A batch file has one object a line: jq -c '.[]' IN > OUT"


class NotABatchFile(ValueError):
    """No line of the input can be sent; the message says what it is instead."""


class Recognizer:
    """Sees the lines of a file that are not blank, in order, until one can be sent."""

    def __init__(self) -> None:
        self._first = b""
        self._known = False

    def see(self, line: bytes, number: int) -> None:
        """number: of the line among those that are not blank, from 0. Raises NotABatchFile for a file that cannot be one."""
        if len(line) >= LINE_BYTES_MOST and not line.endswith(b"\n"):
            raise NotABatchFile(f"line {number + 1} has {LINE_BYTES_MOST >> 20} MiB or more")
        if self._known:
            return
        if number == 0:
            self._first = line
            if (problem := _wrong_start(line)) is not None:
                raise NotABatchFile(problem)
        self._known = parse_line(line, number + 1).error is None

    def check(self, lines: int) -> None:
        """At the end of a file with that many lines. Raises NotABatchFile if there are some, but none that can be sent."""
        if not lines or self._known:
            return
        first = self._first.removeprefix(BOM).strip()
        if b"\r" in first:
            raise NotABatchFile("its lines end in CR alone. Write LF: tr '\\r' '\\n' < IN > OUT")
        if first.startswith(b"["):
            raise NotABatchFile(_ARRAY)
        if first == b"{":
            raise NotABatchFile("its objects have several lines each. A batch file has one object a line: jq -c . IN > OUT")
        problem = (parse_line(first, 1).error or "").removeprefix("line 1: ")
        likely = looks_like(first)
        looks = f"It looks like {likely}. " if likely else ""
        raise NotABatchFile(f"none of its lines can be sent. {looks}The first one: {problem}")


def _wrong_start(line: bytes) -> str | None:
    for start, problem in _STARTS:
        if line.startswith(start):
            return problem
    if line[:4].count(b"\x00") > 1:
        return "it has NUL bytes, as UTF-16 and UTF-32 have. Write it as UTF-8"
    return _ARRAY if line.removeprefix(BOM).lstrip().startswith(b"[") and not _is_whole(line) else None


def _is_whole(line: bytes) -> bool:
    """Whether a line that begins as an array ends there as well: then it may be one bad line, and others are requests."""
    try:
        json.loads(line.removeprefix(BOM).decode())
    except RecursionError:
        return True
    except ValueError:
        return False
    return True
