"""Tokens per scheduler step, by the engine's own default table where the layout is silent."""

from __future__ import annotations

from msgspec import Struct

from shardwright.facts.versions import version_in


class BatchSettings(Struct, frozen=True):
    """`asked`: max_num_batched_tokens of the layout. The card is 0 GiB and has no name where none was seen."""

    version: str
    platform: str
    world_size: int
    card_gib: float
    card_name: str
    compute_capability: str
    asked: int | None = None
    throughput_mode: bool = False
    chunked_prefill: bool = True
    max_model_len: int | None = None
    max_num_seqs: int | None = None


def batched_tokens(settings: BatchSettings) -> int:
    """max_num_batched_tokens of a server.

    vLLM engine/arg_utils.py get_batch_defaults and _set_default_max_num_seqs_and_batched_tokens_args: 16,384 from
    160 GiB a card, 8,192 from 70 GiB unless it is an A100 (or, from 0.33, a GB10), else 2,048; on the CPU 2,048 a rank.
    """
    if settings.asked is not None:
        return settings.asked
    tokens, sequences = _defaults(settings)
    if settings.throughput_mode:
        tokens, sequences = 2 * tokens, 2 * sequences
    if settings.max_model_len is None:
        return tokens
    if not settings.chunked_prefill:
        tokens = max(tokens, settings.max_model_len)
    return min(tokens, (settings.max_num_seqs or sequences) * settings.max_model_len)


def _defaults(settings: BatchSettings) -> tuple[int, int]:
    if settings.platform == "cpu":
        return 2048 * settings.world_size, 128 * settings.world_size
    small = (2048, 256)
    if settings.compute_capability == "12.1" and version_in(settings.version, ">=0.33"):
        return small
    if settings.card_gib >= 160:
        return 16384, 1024
    return small if settings.card_gib < 70 or _is_a100(settings) else (8192, 1024)


def _is_a100(settings: BatchSettings) -> bool:
    # Without a name, an 80 GB card of capability 8.0 is one.
    return "a100" in settings.card_name.lower() if settings.card_name else settings.compute_capability == "8.0"
