"""``python -m nightshift.cli`` is the command ``nightshift``."""

import sys

from nightshift.cli import main

sys.exit(main())
