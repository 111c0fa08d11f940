"""What the loop detector costs per token, by length, beside cutting the same text into words and reading its JSON.

python benchmarks/detector.py [OUT.json]
"""

from __future__ import annotations

import json
import platform
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from shardwright.probes.degen.detector import LoopDetector
from shardwright.probes.faulty.prose import prose
from shardwright.probes.units import split_units

ROUNDS = 7
LENGTHS = (2_000, 8_000, 32_000, 128_000)


def cpu_us(work: Callable[[], Any]) -> float:
    began_s = time.process_time()
    work()
    return 1e6 * (time.process_time() - began_s)


def main() -> None:
    rows = []
    words = split_units(prose("detector", max(LENGTHS)))
    for tokens in LENGTHS:
        units = words[:tokens]
        text = " ".join(units)
        events = [json.dumps({"choices": [{"delta": {"content": unit}, "token_ids": [7]}]}) for unit in units]
        costs: dict[str, list[float]] = {"detector": [], "words": [], "json": []}
        for _ in range(ROUNDS):
            costs["detector"].append(cpu_us(lambda units=units: LoopDetector().push_all(units)))
            costs["words"].append(cpu_us(lambda text=text: split_units(text)))
            costs["json"].append(cpu_us(lambda events=events: all(json.loads(event) for event in events)))
        ratios = {
            name: round(statistics.median(a / b for a, b in zip(costs["detector"], costs[name], strict=True)), 2)
            for name in ("words", "json")
        }
        us = round(statistics.median(costs["detector"]) / tokens, 2)
        rows.append({"tokens": tokens, "us_per_token": us, "over_words": ratios["words"], "over_json": ratios["json"]})
        print(json.dumps(rows[-1]), flush=True)
    record = {"python": platform.python_version(), "machine": platform.machine(), "rounds": ROUNDS, "rows": rows}
    if len(sys.argv) > 1:
        Path(sys.argv[1]).write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
