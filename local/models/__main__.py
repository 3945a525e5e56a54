"""``python -m local.models [NAME...]``: makes models, by default those that need no package, and prints where they are."""

from __future__ import annotations

import sys

from local.models import MADE_HERE, NAMES, ModelFailed, ensure


def main(names: list[str]) -> int:
    if unknown := [name for name in names if name not in NAMES]:
        print(f"There is no model {unknown[0]!r}; there are: {', '.join(NAMES)}.", file=sys.stderr)
        return 2
    for name in names or MADE_HERE:
        try:
            model = ensure(name)
        except (FileNotFoundError, ModelFailed) as error:
            print(error, file=sys.stderr)
            return 1
        print(model.uri, model.revision, model.folder)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
