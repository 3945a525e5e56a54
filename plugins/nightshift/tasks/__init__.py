"""Task kinds: one small pure file each. `TASK_KINDS` names them; `nightshift.tasks.base.load` finds them."""

from typing import Final

TASK_KINDS: Final[tuple[str, ...]] = ("embedding",)
