"""`python3 hosts/driver …` in a bundle: import this file's directory as a package, and call its main()."""

from __future__ import annotations

import importlib
import os
import sys

if __name__ == "__main__":
    here = os.path.dirname(os.path.abspath(__file__))
    if not __package__:
        sys.path.insert(0, os.path.dirname(here))
    command = importlib.import_module(f"{__package__ or 'driver'}.command")
    sys.exit(command.main(sys.argv[1:], os.path.dirname(os.path.dirname(here))))
