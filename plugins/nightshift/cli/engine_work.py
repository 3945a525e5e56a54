"""What commands have in common that send rows to an engine of the deployment: where everything is."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from nightshift.cli.trouble import apart, open_bucket, warehouse_of
from nightshift.hooks.deployment import Deployment

if TYPE_CHECKING:
    from nightshift.trial.world import World


def world_here(environment: Mapping[str, str]) -> World:
    """Raises SettingsError, PricesError, NoAccount."""
    from nightshift.planner.costs.prices import load_prices
    from nightshift.settings import Settings
    from nightshift.trial.world import World

    at = Deployment(Settings.from_environment(environment))

    def warehouse(**labels: str) -> Any:
        return warehouse_of(lambda: at.samples(**labels))

    return World(
        store=open_bucket(f"gs://{at.settings.bucket}"),
        settings=at.settings,
        warehouse=warehouse,
        runtime=lambda: apart(at.runtime),
        prices=load_prices(environment.get("NIGHTSHIFT_PRICES")),
        environment=environment,
        say=lambda sentence: print(f"{sentence}.", file=sys.stderr, flush=True),
    )
