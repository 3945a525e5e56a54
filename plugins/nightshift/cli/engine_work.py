"""What commands have in common that send rows to an engine of the deployment: where everything is, and what goes wrong."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from nightshift import exits
from nightshift.cli.given import Wrong
from nightshift.cli.trouble import NoAccount, beside_the_stack, open_bucket, stand_in_answers, tell

if TYPE_CHECKING:
    from nightshift.preview.session import Surroundings


def guarded(command: str, work: Callable[[], int]) -> int:
    """The exit code of the work, or of what kept it from being done, which is said on standard error."""
    from nightshift.jobset.runtime import RequestRefused, RuntimeUnavailable
    from nightshift.planner.costs.prices import PricesError
    from nightshift.preview.outcome import EngineGone, UnfitEngine
    from nightshift.preview.rows import NoRows
    from nightshift.preview.warm import NoEngine, NoMachine
    from nightshift.settings import SettingsError
    from nightshift.spec import SpecErrors
    from nightshift.store import StoreUnavailable

    try:
        return work()
    except (SpecErrors, PricesError) as error:
        return _failed(str(error), exits.BAD_INPUT)
    except SettingsError as error:
        return _failed(f"nightshift {command}: {error}{beside_the_stack()}", exits.BAD_INPUT)
    except (NoRows, Wrong) as error:
        return _failed(f"nightshift {command}: {error}", exits.BAD_INPUT)
    except (EngineGone, NoMachine, RuntimeUnavailable) as error:
        return _failed(f"nightshift {command}: {error}", exits.RESUME)
    except (NoAccount, StoreUnavailable) as error:
        return tell(command, error)
    except (NoEngine, RequestRefused, UnfitEngine) as error:
        return _failed(f"nightshift {command}: {error}", exits.CONFIG)
    except KeyboardInterrupt:
        return exits.INTERRUPTED
    except Exception as error:
        # Not by their classes: those come with Google's packages, which kept rows do not need.
        codes = {"WarehouseUnavailable": exits.RESUME, "WarehouseError": exits.CONFIG, "NoCredentials": exits.CONFIG}
        if (code := codes.get(type(error).__name__)) is None:
            raise
        return _failed(f"nightshift {command}: {error}{beside_the_stack()}", code)


def _failed(message: str, code: int) -> int:
    print(message, file=sys.stderr)
    return code


def surroundings(environment: Mapping[str, str]) -> Surroundings:
    """Raises SettingsError, PricesError."""
    from nightshift.planner.costs.prices import load_prices
    from nightshift.preview.session import Surroundings
    from nightshift.settings import Settings

    settings = Settings.from_environment(environment)

    def warehouse(**labels: str) -> Any:
        from nightshift.hooks.warehouse import samples_for

        stand_in_answers()
        return samples_for(settings, **labels)

    def runtime() -> Any:
        from nightshift.jobset.local.client import local_runtime

        if (local := local_runtime(settings)) is not None:
            return local
        from nightshift.hooks.runtime import runtime_for

        return runtime_for(settings).runtime

    return Surroundings(
        store=open_bucket(f"gs://{settings.bucket}"),
        settings=settings,
        warehouse=warehouse,
        runtime=runtime,
        prices=load_prices(environment.get("NIGHTSHIFT_PRICES")),
        environment=environment,
        say=lambda sentence: print(f"{sentence}.", file=sys.stderr, flush=True),
    )
