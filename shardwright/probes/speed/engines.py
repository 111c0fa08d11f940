"""Other measuring tools where they are installed: how they are called, and their results as rows beside ours.

Each runs on its own definitions: `vllm bench serve` counts the first chunk, with or without text, as the first token;
llama-benchy reports both that (ttfr) and the first text (e2e_ttft), of which the second is taken here.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from shardwright.errors import DeployError, ExitCode, UsageError
from shardwright.probes.server import Server
from shardwright.probes.speed.plan import MANY, SpeedPlan
from shardwright.probes.speed.prompts import prompt_of
from shardwright.probes.speed.report import Row
from shardwright.probes.wire import get

ENGINES = ("vllm-bench", "llama-benchy")
_PROGRAMS = {"vllm-bench": "vllm", "llama-benchy": "llama-benchy"}
_TIMEOUT_S = 3600.0
_LAST_LINES = 5


def run_engine(engine: str, server: Server, plan: SpeedPlan, folder: Path, tokenizer: str | None) -> list[Row]:
    """Run a tool at each of the plan's concurrencies, keep its raw files in `folder`, and return its rows.

    `tokenizer` is a local path or name; without one, the path under which the server says that it read the model.
    Raises DeployError where the tool is not installed or fails.
    """
    program = _program(engine)
    folder.mkdir(parents=True, exist_ok=True)
    name = tokenizer or _root(server)
    if engine == "llama-benchy":
        if server.endpoint.api_key is not None:
            raise UsageError(
                "llama-benchy takes an API key on its command line only",
                why="there every user of this host can read it",
                fix="leave out --engine llama-benchy, or ask a server that wants no key",
            )
        file = folder / "llama-benchy.json"
        _call([program, *benchy_arguments(server, plan, file, name)], server, file)
        return benchy_rows(_read(file))
    prompts = folder / "prompts.json"
    rows = []
    for level in plan.concurrencies:
        prompts.write_text(json.dumps(_conversations(level * plan.rounds)), encoding="utf-8")
        file = folder / f"vllm-bench-c{level}.json"
        _call([program, *bench_arguments(server, plan, level, prompts, file, name)], server, file)
        rows.append(bench_row(_read(file), plan.max_tokens, level))
    return rows


def bench_arguments(
    server: Server, plan: SpeedPlan, level: int, prompts: Path, file: Path, tokenizer: str
) -> list[str]:
    """Arguments of `vllm` for one concurrency: our prompts and length, greedy, warmed up."""
    return [
        *("bench", "serve", "--backend", "openai-chat", "--endpoint", "/v1/chat/completions"),
        *("--base-url", server.endpoint.base_url, "--model", tokenizer, "--served-model-name", server.model),
        *("--tokenizer", tokenizer, "--dataset-name", "sharegpt", "--dataset-path", str(prompts)),
        *(
            "--sharegpt-output-len",
            str(plan.max_tokens),
            "--disable-shuffle",
            "--num-prompts",
            str(level * plan.rounds),
        ),
        *("--max-concurrency", str(level), "--num-warmups", str(level), "--ignore-eos", "--temperature", "0"),
        *("--percentile-metrics", "ttft,tpot,itl,e2el", "--metric-percentiles", "50,95,99", "--disable-tqdm"),
        *("--save-result", "--result-dir", str(file.parent), "--result-filename", file.name),
    ]


def benchy_arguments(server: Server, plan: SpeedPlan, file: Path, tokenizer: str) -> list[str]:
    """Arguments of `llama-benchy` for the whole plan: its own texts, our lengths and concurrencies."""
    lengths = [str(tokens) for tokens in plan.prefill_tokens] or ["512"]
    levels = [str(level) for level in plan.concurrencies]
    return [
        *("--base-url", f"{server.endpoint.base_url}/v1", "--model", tokenizer, "--served-model-name", server.model),
        *("--tokenizer", tokenizer, "--pp", *lengths, "--tg", str(plan.max_tokens), "--exact-tg"),
        *("--concurrency", *levels, "--runs", str(plan.rounds), "--no-cache", "--skip-coherence"),
        *("--format", "json", "--save-result", str(file)),
    ]


def bench_row(result: Mapping[str, Any], max_tokens: int, level: int) -> Row:
    """A result file of `vllm bench serve` as a row. Its tok/s is over the whole run, ramp-up included."""
    token_ms = result.get("median_tpot_ms")
    return {
        **_empty("vllm-bench", "decode", level),
        "prompt": MANY,
        "sampler": "greedy",
        "max_tokens": max_tokens,
        "rounds": result.get("completed"),
        "lost": result.get("failed"),
        "status": "OK" if result.get("completed") and not result.get("failed") else "FAILED",
        "tok_s": result.get("output_throughput"),
        "tok_s_stream": 1000 / token_ms if token_ms else None,
        "token_ms": token_ms,
        "accept_len": result.get("spec_decode_acceptance_length"),
        "ttft_ms_p50": result.get("median_ttft_ms"),
        "ttft_ms_p95": result.get("p95_ttft_ms"),
        "ttft_ms_p99": result.get("p99_ttft_ms"),
        "itl_ms_p50": result.get("median_itl_ms"),
        "itl_ms_p95": result.get("p95_itl_ms"),
        "itl_ms_p99": result.get("p99_itl_ms"),
    }


def benchy_rows(result: Mapping[str, Any]) -> list[Row]:
    """A result file of llama-benchy as rows: prefill and decode of each of its tests, medians of its runs."""
    rows = []
    for test in result.get("benchmarks") or ():
        level = test["concurrency"]
        common = {"prompt_tokens": test["prompt_size"], "rounds": _count(test), "status": "OK"}
        ttft_ms = _median_of(test.get("e2e_ttft"))
        rows.append(
            {
                **_empty("llama-benchy", "prefill", level),
                **common,
                "target_tokens": test["prompt_size"],
                "tok_s": _median_of(test.get("pp_throughput")),
                "ttft_ms_p50": ttft_ms,
            }
        )
        stream = _median_of(test.get("tg_req_throughput"))
        rows.append(
            {
                **_empty("llama-benchy", "decode", level),
                **common,
                "prompt": "book",
                "max_tokens": test["response_size"],
                "tok_s": _median_of(test.get("tg_throughput")),
                "tok_s_stream": stream,
                "token_ms": 1000 / stream if stream else None,
                "ttft_ms_p50": ttft_ms,
            }
        )
    return rows


def _conversations(count: int) -> list[dict[str, Any]]:
    """Our prompts in the one form of prompt file that the tool reads without further packages; the answer is unused."""
    return [{"conversations": [{"value": prompt_of(MANY, variant)}, {"value": "unused"}]} for variant in range(count)]


def _empty(tool: str, test: str, level: int) -> Row:
    return {"tool": tool, "test": test, "prompt": None, "sampler": None, "concurrency": level}


def _median_of(metric: Mapping[str, Any] | None) -> float | None:
    values = (metric or {}).get("values")
    return median(values) if values else None


def _count(test: Mapping[str, Any]) -> int:
    return len((test.get("tg_throughput") or {}).get("values") or ())


def _program(engine: str) -> str:
    name = _PROGRAMS[engine]
    beside = Path(sys.executable).with_name(name)
    found = str(beside) if beside.exists() else shutil.which(name)
    if found is None:
        raise DeployError(
            f"{name} is not installed here",
            why=f"--engine {engine} runs it beside the built-in measurement",
            fix=f"install it in this environment: pip install {name}",
        )
    return found


def _root(server: Server) -> str:
    """Where the server says that it read the model from; its name where it does not say."""
    content = get(server.endpoint, "/v1/models").json()
    for entry in content.get("data") or ():
        if entry.get("id") == server.model and isinstance(entry.get("root"), str):
            return str(entry["root"])
    return server.model


def _call(command: Sequence[str], server: Server, file: Path) -> None:
    """Run the tool; the key goes through its environment. Raises DeployError where it leaves no result."""
    env = dict(os.environ)
    if server.endpoint.api_key is not None:
        env["OPENAI_API_KEY"] = server.endpoint.api_key
    file.unlink(missing_ok=True)
    try:
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=_TIMEOUT_S, errors="replace")
    except subprocess.TimeoutExpired:
        raise DeployError(
            f"{Path(command[0]).name} did not end within {_TIMEOUT_S:g} s", code=ExitCode.TIMEOUT
        ) from None
    file.with_suffix(".log").write_text(server.endpoint.hide(done.stdout + done.stderr), encoding="utf-8")
    if done.returncode or not file.exists():
        last = " / ".join((done.stderr or done.stdout).strip().splitlines()[-_LAST_LINES:])
        raise DeployError(
            f"{Path(command[0]).name} failed (exit {done.returncode})",
            why=server.endpoint.hide(last),
            fix=f"read {file.with_suffix('.log')}",
            code=ExitCode.HARNESS,
        )


def _read(file: Path) -> dict[str, Any]:
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except ValueError:
        content = None
    if not isinstance(content, dict):
        raise DeployError(f"{file} is no result of a benchmark", code=ExitCode.HARNESS)
    return content
