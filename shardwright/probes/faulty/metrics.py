"""The counters of the faulty server, and their text as Prometheus reads it."""

from __future__ import annotations

import threading
from collections import Counter

_COUNTERS = (
    "prompt_tokens_total",
    "generation_tokens_total",
    "prefix_cache_queries_total",
    "prefix_cache_hits_total",
    "num_preemptions_total",
    "corrupted_requests_total",
)
_SPECULATIVE = (
    "spec_decode_num_drafts_total",
    "spec_decode_num_draft_tokens_total",
    "spec_decode_num_accepted_tokens_total",
)


class Metrics:
    """Thread-safe counters by name without the `vllm:` prefix; a label follows a bar (`name|label="x"`)."""

    def __init__(self, model: str, started_at: str) -> None:
        self._model = model
        self._started_at = started_at
        self._values: Counter[str] = Counter()
        self._lock = threading.Lock()
        self.running = 0

    def add(self, **amounts: int) -> None:
        with self._lock:
            self._values.update(amounts)

    def add_labelled(self, name: str, label: str, amount: int = 1) -> None:
        with self._lock:
            self._values[f"{name}|{label}"] += amount

    def enter(self) -> int:
        """Count a request in; returns how many run now."""
        with self._lock:
            self.running += 1
            return self.running

    def leave(self) -> None:
        with self._lock:
            self.running -= 1

    def reset(self) -> None:
        """All counters back to zero, as after a restart that nobody announced."""
        with self._lock:
            self._values.clear()

    def text(self, *, speculative: bool) -> bytes:
        """The body of /metrics."""
        labels = f'engine="0",model_name="{self._model}"'
        with self._lock:
            values = dict(self._values)
            running = self.running
        lines = [
            "# TYPE process_start_time_seconds gauge",
            f"process_start_time_seconds {self._started_at}",
            f"vllm:num_requests_running{{{labels}}} {float(running)}",
            f"vllm:num_requests_waiting{{{labels}}} 0.0",
            f"vllm:kv_cache_usage_perc{{{labels}}} 0.0",
        ]
        for name in _COUNTERS + (_SPECULATIVE if speculative else ()):
            lines.append(f"vllm:{name}{{{labels}}} {float(values.get(name, 0))}")
        for reason in ("stop", "length", "abort"):
            count = values.get(f'request_success_total|finished_reason="{reason}"', 0)
            lines.append(f'vllm:request_success_total{{{labels},finished_reason="{reason}"}} {float(count)}')
        for key in sorted(key for key in values if key.startswith("spec_decode_num_accepted_tokens_per_pos_total|")):
            name, _, label = key.partition("|")
            lines.append(f"vllm:{name}{{{labels},{label}}} {float(values[key])}")
        return ("\n".join(lines) + "\n").encode("ascii")
