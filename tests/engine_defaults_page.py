"""The table of an engine's defaults in docs/operate/capacity.md: what `defaults_of` says of each accelerator.

`python -m tests.engine_defaults_page` (with PYTHONPATH=plugins) writes it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from nightshift.profiles import PROFILES, Provisioning, Span, fit
from nightshift.spec.engine_defaults import TOKENS, Wanted, defaults_of

PAGE: Final = Path(__file__).parent.parent / "docs/operate/capacity.md"
BEGIN: Final = "<!-- engine defaults: made by python -m tests.engine_defaults_page -->\n"
END: Final = "<!-- end of the engine defaults -->"


def with_table(text: str) -> str:
    """The page, with the table as it is now."""
    before, _, rest = text.partition(BEGIN)
    return f"{before}{BEGIN}{table()}{END}{rest.partition(END)[2]}"


def table() -> str:
    """A line for each accelerator, those with equal lines together."""
    lines: dict[tuple[str, ...], list[str]] = {}
    for name, profile in PROFILES.items():
        if profile.hardware is None or profile.provisioning is Provisioning.SPOT:
            shape = fit(profile, Span())
            found = [
                defaults_of(wanted, shape)
                for wanted in (
                    Wanted("chat", None, None),
                    Wanted("embedding", None, 512),
                    Wanted("embedding", None, None),
                    Wanted("chat", None, None, offline=False),
                )
            ]
            cells = [f"{found[0].seats:,}", *(_tokens(each.flags.get(TOKENS)) for each in found[:3]), f"{found[3].seats:,}"]
            lines.setdefault(tuple(cells), []).append(f"`{name.removesuffix('-spot')}`")
    head = (
        "| Profile | `max_num_seqs` | Tokens a step (`max-num-batched-tokens`): chat, completion, "
        "image | Embedding and other pooling, `max_model_len` 512 | The same, length not stated | A stream's `max_num_seqs` |\n"
        "|---|---|---|---|---|---|\n"
    )
    return head + "".join(f"| {', '.join(names)} | {' | '.join(cells)} |\n" for cells, names in lines.items())


def _tokens(value: int | None) -> str:
    return "vLLM's own" if value is None else f"{value:,}"


if __name__ == "__main__":
    PAGE.write_text(with_table(PAGE.read_text()))
