"""`ddpgen`, and the same as `python -m ddpgen`."""

from __future__ import annotations

import gc

gc.disable()  # already for the imports, which make most of the objects: see ddpgen.cli.main

from ddpgen.cli import main  # noqa: E402

if __name__ == "__main__":
    main()
