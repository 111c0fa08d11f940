"""How well streaming clients know when an event came: the project's own beside `vllm bench serve`, on one mock server.

The mock writes into each event when it was sent; the error of a client is |gap as received - gap as sent|, as a share
of the period. Rounds of the two clients alternate.

python benchmarks/client.py [OUT.json]
"""

from __future__ import annotations

import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from shardwright.probes.self_check import check_client, gap_errors, paced_server, sent_times_s

ROUNDS = 3
EVENTS = 100
LOADS = ((16, 0.01), (128, 0.01), (128, 0.02))


def own(streams: int, period_s: float) -> dict[str, float]:
    check = check_client(streams, period_s, EVENTS)
    return {"median": check.median_gap_error, "p95": check.p95_gap_error, "ttft_ms": 1000 * check.median_ttft_s}


def write_tokenizer(folder: Path) -> None:
    """A tokenizer of a thousand words: the other client insists on one to make its prompts."""
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import Whitespace

    tokenizer = Tokenizer(WordLevel({"[UNK]": 0} | {f"w{n}": n for n in range(1, 1000)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = Whitespace()
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "PreTrainedTokenizerFast"}))


def vllm_bench(streams: int, period_s: float, folder: Path) -> dict[str, float] | None:
    """The same load by vLLM's own client; None where it is not installed."""
    vllm = Path(sys.executable).with_name("vllm")
    if not vllm.exists():
        return None
    write_tokenizer(folder)
    with paced_server(period_s, EVENTS) as base_url:
        command = [
            *(str(vllm), "bench", "serve", "--backend", "openai-chat", "--endpoint", "/v1/chat/completions"),
            *("--base-url", base_url, "--model", "pacer", "--tokenizer", str(folder), "--dataset-name", "random"),
            *("--random-input-len", "8", "--random-output-len", str(EVENTS), "--random-range-ratio", "0"),
            *("--num-prompts", str(streams), "--max-concurrency", str(streams), "--ready-check-timeout-sec", "0"),
            *("--save-result", "--save-detailed", "--result-dir", str(folder), "--result-filename", "result.json"),
        ]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    result = json.loads((folder / "result.json").read_text())
    errors: list[float] = []
    for text, gaps in zip(result["generated_texts"], result["itls"], strict=True):
        sent = sent_times_s(text)
        arrived = [0.0]
        # The first gap is from the role chunk, which carries no stamp; the last is to the chunk that only ends it.
        for gap in gaps[1 : len(sent)]:
            arrived.append(arrived[-1] + gap)
        errors += gap_errors(sent, arrived, period_s)
    errors.sort()
    return {
        "median": statistics.median(errors),
        "p95": errors[int(0.95 * (len(errors) - 1))],
        "ttft_ms": result["median_ttft_ms"],
    }


def summed(rounds: list[dict[str, float]]) -> dict[str, float]:
    return {name: round(statistics.median(one[name] for one in rounds), 5) for name in rounds[0]}


def main() -> None:
    rows: list[dict[str, Any]] = []
    for streams, period_s in LOADS:
        ours, theirs = [], []
        for _ in range(ROUNDS):
            ours.append(own(streams, period_s))
            with tempfile.TemporaryDirectory() as folder:
                found = vllm_bench(streams, period_s, Path(folder))
            if found:
                theirs.append(found)
        row = {"streams": streams, "period_ms": 1000 * period_s, "own": summed(ours)}
        rows.append(row | {"vllm_bench": summed(theirs) if theirs else None})
        print(json.dumps(rows[-1]), flush=True)
    record = {
        "python": platform.python_version(),
        "machine": f"{os.cpu_count()} cores, {platform.machine()}",
        "load": round(os.getloadavg()[0], 1),
        "rounds": ROUNDS,
        "events": EVENTS,
        "rows": rows,
    }
    if len(sys.argv) > 1:
        Path(sys.argv[1]).write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
