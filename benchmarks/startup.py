"""What the command costs to start, beside `python -c pass`: paired rounds, medians of CPU-time ratios.

python benchmarks/startup.py [OUT.json]
"""

from __future__ import annotations

import json
import os
import platform
import statistics
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
ROUNDS = 25
# A fresh process reads compiled modules, as it does for everybody who runs the command twice.
ENVIRONMENT = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
COMMANDS = {
    "deploy --version": ["deploy.py", "--version"],
    "deploy --help": ["deploy.py", "--help"],
    "deploy cmd": ["deploy.py", "cmd", "glm53-tp4pp2"],
    "deploy cmd --json": ["deploy.py", "cmd", "glm53-tp4pp2", "--json"],
}


def cpu_seconds(argv: list[str]) -> float:
    """User and system time of one whole process."""
    pid = os.posix_spawn(
        sys.executable,
        [sys.executable, *argv],
        ENVIRONMENT,
        file_actions=[(os.POSIX_SPAWN_OPEN, fd, os.devnull, os.O_WRONLY, 0) for fd in (1, 2)],
    )
    _, status, usage = os.wait4(pid, 0)
    if status != 0:
        raise SystemExit(f"{argv} ended with {status}")
    return usage.ru_utime + usage.ru_stime


def main() -> None:
    os.chdir(ROOT)
    for argv in COMMANDS.values():
        cpu_seconds(argv)
    ratios: dict[str, list[float]] = {name: [] for name in COMMANDS}
    for _ in range(ROUNDS):
        for name, argv in COMMANDS.items():
            ratios[name].append(cpu_seconds(argv) / cpu_seconds(["-c", "pass"]))
    result = {
        "python": platform.python_version(),
        "machine": platform.machine(),
        "rounds": ROUNDS,
        "ratio_to_pass": {
            name: {
                "median": round(statistics.median(values), 2),
                "min": round(min(values), 2),
                "max": round(max(values), 2),
            }
            for name, values in ratios.items()
        },
    }
    text = json.dumps(result, indent=1)
    print(text)
    if len(sys.argv) > 1:
        Path(sys.argv[1]).write_text(text + "\n")


if __name__ == "__main__":
    main()
