"""What a page shows of one run, all of it from `nightshift.status`; what was read is kept for the next look."""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING, Any, Final

from nightshift.operators.links import folder_address
from nightshift.plugin.pages.bucket import Kept, bucket, settings

if TYPE_CHECKING:
    from nightshift.run.names import RunRef
    from nightshift.status.dead_letters import DeadLetterPage
    from nightshift.status.distributions import Compared
    from nightshift.status.overview import Overview
    from nightshift.status.samples import Samples

DEAD_LETTERS_A_PAGE: Final = 20
PREVIEWS: Final = 3


class Facts:
    """Of one run. Threads may share it. Everything raises what `nightshift.status` raises."""

    def __init__(self, run: RunRef) -> None:
        from nightshift.planner.costs.prices import load_prices
        from nightshift.status.dead_letters import DeadLetters
        from nightshift.status.overview import RunLook

        deployment = settings()
        self._store = bucket()
        self._run = run
        self._look = RunLook(self._store, run, run.url(deployment.bucket), load_prices(deployment.prices or None))
        self._dead = DeadLetters(self._store, run)
        self._lock = threading.Lock()
        self._slow: dict[str, tuple[int, Any]] = {}

    def overview(self) -> Overview:
        return self._look.look()

    def pods(self) -> list[dict[str, Any]]:
        """Where the pods of each of its JobSets are, as far as the task `infer` has seen."""
        from nightshift.run.pods_now import load

        return [{**each.to_json(), "counts": each.counts()} for each in load(self._store, self._run)]

    def previews(self) -> list[dict[str, Any]]:
        """The newest ones of its job."""
        from nightshift.preview.results import newest

        return [each.to_json() for each in newest(self._store, self._run.job, PREVIEWS)]

    def dead_letters(self, reason: str | None, search: str, after: int) -> DeadLetterPage:
        return self._dead.page(reason=reason, search=search, after=after, count=DEAD_LETTERS_A_PAGE)

    def samples(self) -> Samples:
        from nightshift.status.samples import samples

        found: Samples = self._once("samples", lambda: samples(self._store, self._run))
        return found

    def compared(self) -> Compared:
        from nightshift.status.distributions import compared
        from nightshift.status.runs import published_before

        def read() -> Compared:
            return compared(self._store, self._run, published_before(self._store, self._run))

        found: Compared = self._once("compared", read)
        return found

    def _once(self, name: str, read: Any) -> Any:
        """What was read when as many chunks were committed as now; one reads, the others wait."""
        committed = self.overview().status.chunks_committed
        with self._lock:
            kept = self._slow.get(name)
            if kept is None or kept[0] != committed:
                self._slow[name] = kept = committed, read()
            return kept[1]


of: Kept[RunRef, Facts] = Kept(Facts)


def folder_link(run: RunRef) -> str:
    """The run's files in the Cloud console, or in the emulator's listing."""
    return folder_address(settings().bucket, run.prefix, os.environ.get("STORAGE_EMULATOR_HOST", ""))
