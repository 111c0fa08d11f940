#!/usr/bin/env python3
"""Run the `deploy` command from a checkout without installing it."""

import sys
from pathlib import Path

if __name__ == "__main__":
    if sys.version_info < (3, 11):  # noqa: UP036  (an older Python should say so in one line)
        sys.exit("error: deploy needs Python 3.11 or newer")
    sys.path.insert(0, str(Path(__file__).resolve().parent))
    try:
        from shardwright.cli.main import main
    except ModuleNotFoundError as error:
        sys.exit(f"error: the package {error.name} is not installed for {sys.executable}\n  fix: pip install .")

    main()
