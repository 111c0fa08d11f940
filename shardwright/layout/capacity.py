"""The `capacity:` key of a layout: what the KV planner needs beside the model and the cards."""

from __future__ import annotations

from msgspec import Struct

from shardwright.connect.decode import Section


class Calibration(Struct, frozen=True):
    """What one boot of this model on these cards had left for the KV cache; moving layers predicts other splits.

    `partition` holds layers per stage, `available_gib` the memory for the KV cache per card of each stage, and
    `layer_gib` what one moved layer weighs on a card (None: from the weights). `tensor` and `gpu_memory_utilization`
    are those of the boot; None means the layout's own. `boundary_buffer` says whether the boot ran with a patch that
    holds index rows for the next stage. `max_model_len` and `kv_cache_dtype` are those of the boot too: they decide the
    prefill workspace; None leaves that as it is.
    """

    partition: tuple[int, ...]
    available_gib: tuple[float, ...]
    layer_gib: float | None
    tensor: int | None
    gpu_memory_utilization: float | None
    boundary_buffer: bool
    max_model_len: int | None = None
    kv_cache_dtype: str | None = None


class Capacity(Struct, frozen=True):
    """What the KV planner needs beside the model and the cards.

    `stage_memory_gib`: memory per card of each stage where the cards differ. `overhead_gib`: what is neither weights
    nor KV cache on a card, where nothing is calibrated.
    """

    calibration: Calibration | None
    stage_memory_gib: tuple[float, ...]
    overhead_gib: float | None


def decode_capacity(section: Section) -> Capacity:
    """Decode `capacity:`. Raises UsageError naming file, line and key."""
    calibration = section.section("calibration") if section.has("calibration") else None
    capacity = Capacity(
        calibration=_calibration(calibration) if calibration else None,
        stage_memory_gib=section.numbers("stage_memory_gib"),
        overhead_gib=section.number("overhead_gib") if section.has("overhead_gib") else None,
    )
    section.finish()
    return capacity


def _calibration(section: Section) -> Calibration:
    partition = tuple(int(count) for count in section.numbers("partition", whole=True))
    available = section.numbers("available_gib")
    if not partition or len(partition) != len(available):
        raise section.error(
            "available_gib",
            f"{len(available)} values for {len(partition)} stages of partition",
            fix="write one value per stage, e.g. partition: [39, 39] and available_gib: [21.95, 15.56]",
        )
    utilization = "gpu_memory_utilization"
    calibration = Calibration(
        partition=partition,
        available_gib=available,
        layer_gib=section.number("layer_gib") if section.has("layer_gib") else None,
        tensor=section.integer("tensor", minimum=1) if section.has("tensor") else None,
        gpu_memory_utilization=section.number(utilization) if section.has(utilization) else None,
        boundary_buffer=section.boolean("boundary_buffer", False),
        max_model_len=section.integer("max_model_len", minimum=1) if section.has("max_model_len") else None,
        kv_cache_dtype=section.optional_text("kv_cache_dtype"),
    )
    section.finish()
    return calibration
