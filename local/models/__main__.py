"""``python -m local.models [NAME...]``: makes the models (all of them if you name none) and prints where they are."""

from __future__ import annotations

import sys

from local.models import NAMES, ensure


def main(names: list[str]) -> int:
    if unknown := [name for name in names if name not in NAMES]:
        print(f"There is no model {unknown[0]!r}; there are: {', '.join(NAMES)}.", file=sys.stderr)
        return 2
    for name in names or NAMES:
        model = ensure(name)
        print(model.uri, model.revision, model.folder)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
