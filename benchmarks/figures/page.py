"""``python -m benchmarks.figures.page``: the part "Batching" of docs/develop/benchmarks.md, from batching.json and words.j2."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import jinja2

from benchmarks.figures.data import CONTINUOUS, ROOT, STATIC, Figures, load

PAGE: Final = ROOT / "docs" / "develop" / "benchmarks.md"
BEGIN: Final = "<!-- batching -->\n"
END: Final = "<!-- end of batching -->\n"
TEMPLATE: Final = Path(__file__).with_name("words.j2")

QUIET_LOAD: Final = 1.0


class Untrue(Exception):
    """The page states in words what the figures do not show: the words have to be written again."""


def render(figures: Figures) -> str:
    """The part of the page. Raises Untrue."""
    if wrong := [words for words, is_so in claims(figures).items() if not is_so]:
        raise Untrue(f"{TEMPLATE} states what the figures do not show: {'; '.join(wrong)}")
    environment = jinja2.Environment(
        undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True
    )
    environment.filters |= {"round_to": _rounded, "seconds": _seconds}
    given = {
        "figures": figures,
        "about": figures.about,
        "chat": figures.chat,
        "vectors": figures.vectors,
        "busy": busy(figures),
    }
    return environment.from_string(TEMPLATE.read_text()).render(
        **given, STATIC=STATIC, CONTINUOUS=CONTINUOUS, harmonic=harmonic
    )


def with_part(page: str, part: str) -> str:
    """The page with `part` in place of the one it has."""
    head, _, rest = page.partition(BEGIN)
    return f"{head}{BEGIN}{part}{END}{rest.partition(END)[2]}"


def busy(figures: Figures) -> bool:
    """Whether other work ran on the machine: the page then notes it."""
    return float(figures.about["load_before"].partition("/")[0]) >= QUIET_LOAD


def claims(figures: Figures) -> dict[str, bool]:
    """What the page states without a number, and whether the figures show it."""
    most, several = figures.sizes[-1], [size for size in figures.sizes if size >= 4]
    full, single = figures.rows_per_request[4], figures.rows_per_request[0]
    return {
        "continuous batching is faster, with 4 requests in flight and more": all(
            figures.chat(CONTINUOUS, size, "tokens_per_s") > figures.chat(STATIC, size, "tokens_per_s") for size in several
        ),
        "more in flight gets more done": figures.chat(CONTINUOUS, most, "tokens_per_s")
        > figures.chat(CONTINUOUS, 1, "tokens_per_s"),
        "each answer takes longer, the more requests are in flight": figures.chat(CONTINUOUS, most, "p50_s")
        > figures.chat(CONTINUOUS, 1, "p50_s"),
        "a request costs something whatever it carries": figures.vectors(full, 1, "rows_per_s")
        > figures.vectors(single, 1, "rows_per_s"),
    }


def harmonic(count: int) -> float:
    """The longest of `count` exponential lengths, as a multiple of their mean (1 + 1/2 + ... + 1/count)."""
    return sum(1 / n for n in range(1, count + 1))


def _rounded(value: float, digits: int = 2) -> str:
    """To `digits` significant digits: 1,234.5 is 1,200."""
    return f"{float(f'{value:.{digits}g}'):,.10g}"


def _seconds(value: float) -> str:
    return f"{value * 1000:.0f} ms" if value < 1 else f"{value:.2g} s" if value < 10 else f"{value:.0f} s"


def main() -> None:
    PAGE.write_text(with_part(PAGE.read_text(), render(load())))
    print(f"[figures] {PAGE}")


if __name__ == "__main__":
    main()
