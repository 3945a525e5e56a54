"""Sets of completion indexes as an Indexed Job's status writes them. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator


def parse(text: str) -> tuple[int, ...]:
    """ "1,3-5,7" is (1, 3, 4, 5, 7); "" is (). Raises ValueError for anything else."""
    found: list[int] = []
    for part in filter(None, text.split(",")):
        first, dash, last = part.partition("-")
        try:
            found += range(int(first), int(last if dash else first) + 1)
        except ValueError:
            raise ValueError(f"{text!r} is not a list of indexes like '1,3-5,7': {part!r} is not an index or a range") from None
    return tuple(found)


def write(numbers: Iterable[int]) -> str:
    """The inverse of `parse`, for indexes in any order; two in a row are written with a comma, as in Kubernetes."""
    return ",".join(_parts(sorted(set(numbers))))


def _parts(numbers: list[int]) -> Iterator[str]:
    start = 0
    for position, number in enumerate(numbers):
        if position + 1 < len(numbers) and numbers[position + 1] == number + 1:
            continue
        first = numbers[start]
        yield str(first) if first == number else f"{first}{',' if number == first + 1 else '-'}{number}"
        start = position + 1
