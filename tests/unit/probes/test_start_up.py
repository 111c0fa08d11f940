from __future__ import annotations

import subprocess
import sys


def test_the_verbs_load_nothing_heavy_before_they_need_it() -> None:
    program = (
        "import sys, shardwright.cli.probe_degen\n"
        "print(*sorted({'scipy', 'numpy', 'requests', 'docker', 'http.client', 'ssl'} & set(sys.modules)))"
    )
    printed = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert printed.split() == []
