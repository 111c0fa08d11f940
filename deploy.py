#!/usr/bin/env python3
"""Run the `deploy` command from a checkout without installing it."""

import sys
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parent))
    from shardwright.cli.main import main

    main()
