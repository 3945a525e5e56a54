"""Counts answers that hold nothing, and how often the most frequent one occurs: a night of such answers is green otherwise.

Memory: a few counts for each chunk, by digests of answers. So the most frequent answer occurs at least so often: a batch of
rows in which it is not among the first few, or has less than a tenth of them, is left out. What nearly all rows have is counted
exactly.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

FIRST: Final = 4
"""Of the most frequent answers of a batch, and of a chunk, that are kept."""
SHARE: Final = 0.1
"""Of a batch that an answer needs to be kept."""
LABEL: Final = "label"
"""The field of a classifier's answer that is the answer: scores are hardly ever equal."""


class Tally:
    """empty: answers that hold nothing. known: False once there was an answer of a kind that cannot be counted."""

    def __init__(self) -> None:
        self.empty = 0
        self.known = True
        self._counts: Counter[bytes] = Counter()
        """By a digest of the answer."""

    @classmethod
    def of(cls, tallies: Iterable[Tally]) -> Tally:
        """Of all of them together."""
        found = cls()
        for each in tallies:
            found.empty += each.empty
            found.known &= each.known
            found._counts += each._counts
        return found

    @property
    def equal(self) -> int:
        """How often the most frequent answer occurs, at least."""
        return max(self._counts.values(), default=0)

    def trimmed(self) -> Tally:
        """With its most frequent answers alone."""
        self._counts = Counter(dict(self._counts.most_common(FIRST)))
        return self

    def add(self, predictions: pa.Array) -> None:
        """predictions: of some rows, NULL for a dead letter. Never raises: no proof depends on these counts."""
        try:
            self._add(predictions.drop_null())
        except pa.ArrowException:
            self.known = False

    def _add(self, answers: pa.Array) -> None:
        empty, keys = _looked_at(answers)
        self.empty += int(pc.sum(empty).as_py() or 0)
        counted = pc.value_counts(keys)
        counts = counted.field("counts")
        for place in pc.array_sort_indices(counts, order="descending")[:FIRST].to_pylist():
            if counts[place].as_py() < SHARE * len(keys):
                break
            answer = repr(counted.field("values")[place].as_py()).encode("utf-8", "surrogatepass")
            self._counts[hashlib.blake2b(answer, digest_size=8).digest()] += counts[place].as_py()


def _looked_at(answers: pa.Array) -> tuple[pa.Array, pa.Array]:
    """Of each answer whether it holds nothing, and what it is compared by. Answers without a key are equal to none."""
    kind = answers.type
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return pc.equal(pc.utf8_length(pc.utf8_trim_whitespace(answers)), 0), answers
    if pa.types.is_struct(kind):
        names = [LABEL] if kind.get_field_index(LABEL) >= 0 else [field.name for field in kind]
        parts = [_text(answers.field(name)) for name in names]
        joined = pc.binary_join_element_wise(*parts, "\x1f") if len(parts) > 1 else parts[0]
        return pc.equal(pc.utf8_length(pc.utf8_trim(joined, "\x1f ")), 0), joined
    if pa.types.is_list(kind):
        empty = pc.equal(pc.list_value_length(answers), 0)
        return empty, _whole(answers.filter(pc.invert(empty)))
    return pa.array([], pa.bool_()), answers


def _whole(lists: pa.Array) -> pa.Array:
    """Each list of numbers as its bytes, and of texts as one text: Arrow compares no lists. Of numbers only offsets are copied.
    Lists of something else stay as they are."""
    values = lists.values
    if pa.types.is_string(values.type):
        return pc.binary_join(lists, "\x1f")
    if not (pa.types.is_floating(values.type) or pa.types.is_integer(values.type)) or values.null_count:
        return lists
    offsets = pc.multiply(pc.add(lists.offsets.cast(pa.int64()), values.offset), values.type.byte_width)
    return pa.Array.from_buffers(pa.large_binary(), len(lists), [None, offsets.buffers()[1], values.buffers()[1]])


def _text(values: pa.Array) -> pa.Array:
    """A field of structs as text, "" for NULL. Of a list its length, "" for none; structs inside are all alike."""
    if pa.types.is_list(values.type):
        lengths = pc.list_value_length(values)
        return pc.fill_null(pc.if_else(pc.equal(lengths, 0), None, lengths).cast(pa.string()), "")
    if pa.types.is_struct(values.type):
        return pc.if_else(pc.is_valid(values), "{}", "")
    return pc.fill_null(values.cast(pa.string()), "")
