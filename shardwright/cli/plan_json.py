"""Plans, searches and comparisons as the JSON that `deploy plan --json` prints."""

from __future__ import annotations

from typing import Any

from shardwright.campaign.partition_search import Found
from shardwright.campaign.planning import Alternative, Difference, PlanReport
from shardwright.plan.kv_pool import PoolPlan, StagePool, resident_requests


def report_json(report: PlanReport, request_tokens: int | None) -> dict[str, Any]:
    """The plan of a layout; null where a number is not known."""
    pool = report.pool
    data: dict[str, Any] = {
        "pool_tokens": pool.pool_tokens,
        "bottleneck_stage": pool.bottleneck_stage,
        "max_concurrency": pool.max_concurrency,
        "partition": list(pool.partition),
        "basis": pool.basis,
        "unknown": pool.unknown,
        "max_model_len": pool.max_model_len,
        "fits_one_request": pool.fits_one_request,
        "block_tokens": pool.block_tokens,
        "whole_model_gib": _whole_need(pool),
        "stages": [_stage_json(stage) for stage in pool.stages],
        "remedies": [_alternative_json(item) for item in report.remedies],
        "moves": [_alternative_json(item) for item in report.moves],
    }
    if request_tokens is not None:
        data["resident_requests"] = resident(report, request_tokens)
    return data


def _stage_json(stage: StagePool) -> dict[str, Any]:
    return {
        "stage": stage.stage,
        "first_layer": stage.first_layer,
        "last_layer": stage.last_layer,
        "orphans": list(stage.orphans),
        "indexers": stage.indexers,
        "kv_bytes_per_token": stage.kv_bytes_per_token,
        "available_gib": _rounded(stage.available_gib),
        "blocks": stage.blocks,
        "tokens": stage.tokens,
        "attention_layers": stage.attention_layers,
        "weights_gib": _rounded(stage.weights_gib),
        "needed_gib": _rounded(stage.needed_gib),
    }


def _alternative_json(item: Alternative) -> dict[str, Any]:
    return {
        "partition": list(item.partition),
        "orphans": list(item.orphans),
        "pool_tokens": item.pool_tokens,
        "bottleneck_stage": item.bottleneck_stage,
        "note": item.note,
    }


def found_json(found: Found) -> dict[str, Any]:
    """One partition of a search."""
    return {
        "partition": list(found.partition),
        "pool_tokens": found.pool_tokens,
        "bottleneck_stage": found.bottleneck_stage,
        "orphans": list(found.orphans),
        "available_gib": list(found.available_gib),
        "compute_layers": list(found.compute_layers),
        "tensor": found.tensor,
        "pipeline": found.pipeline,
        "max_concurrency": found.max_concurrency,
        "fits_one_request": found.fits_one_request,
        "basis": found.basis,
    }


def difference_json(row: Difference) -> dict[str, Any]:
    """One predicted number beside the logged one; `difference` is a share."""
    return {
        "what": row.what,
        "predicted": _rounded(row.predicted),
        "actual": row.actual,
        "difference": _rounded(row.share),
        "finding": row.is_finding,
    }


def _whole_need(pool: PoolPlan) -> float | None:
    needs = [stage.needed_gib for stage in pool.stages]
    return None if None in needs else _rounded(sum(need for need in needs if need is not None))


def resident(report: PlanReport, tokens: int) -> int | None:
    """Requests of so many tokens that stay in the pool together; None where the pool is not known."""
    if report.pool.blocks is None:
        return None
    return resident_requests(report.pool.blocks, report.capacity.pages, report.capacity.settings, tokens)


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 6)
