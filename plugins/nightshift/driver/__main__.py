"""``python -m nightshift.driver``: see `nightshift.driver.main`.

A pod may have to end while the driver is still being imported, so what a signal does is set before the imports.
"""

import faulthandler
import os

from nightshift import exits

if __name__ == "__main__":
    faulthandler.enable()
    exits.on_signals(exits.RESUME)
    # Arrow's own pool never gives back some 30 MiB. pyarrow reads this on import.
    os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")
    from nightshift.driver.main import main

    main()
