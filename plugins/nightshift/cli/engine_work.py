"""What commands have in common that send rows to an engine of the deployment: where everything is."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from nightshift.cli.trouble import apart, open_bucket, warehouse_of

if TYPE_CHECKING:
    from nightshift.trial.preview.session import Surroundings


def surroundings(environment: Mapping[str, str]) -> Surroundings:
    """Raises SettingsError, PricesError."""
    from nightshift.planner.costs.prices import load_prices
    from nightshift.settings import Settings
    from nightshift.trial.preview.session import Surroundings

    settings = Settings.from_environment(environment)

    def warehouse(**labels: str) -> Any:
        from nightshift.hooks.warehouse import samples_for

        return warehouse_of(lambda: samples_for(settings, **labels))

    def runtime() -> Any:
        from nightshift.jobset.local.client import local_runtime

        if (local := local_runtime(settings)) is not None:
            return local
        from nightshift.hooks.runtime import runtime_for

        return apart(lambda: runtime_for(settings).runtime)

    return Surroundings(
        store=open_bucket(f"gs://{settings.bucket}"),
        settings=settings,
        warehouse=warehouse,
        runtime=runtime,
        prices=load_prices(environment.get("NIGHTSHIFT_PRICES")),
        environment=environment,
        say=lambda sentence: print(f"{sentence}.", file=sys.stderr, flush=True),
    )
