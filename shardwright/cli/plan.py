"""`deploy plan`: how big the KV pool will be, which stage bounds it, and which partition is best."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path

import click

from shardwright.campaign.partition_search import (
    DEFAULT_MAX_IMBALANCE,
    SearchOptions,
    SearchResult,
    search_all,
    search_pipeline,
)
from shardwright.campaign.planning import (
    TOLERANCE,
    Alternative,
    PlanReport,
    PlanRequest,
    compare_with_log,
    load_plan_request,
    report_plan,
)
from shardwright.cli.common import facts_option, layout_options, read_log
from shardwright.cli.plan_json import difference_json, found_json, report_json, resident
from shardwright.errors import DeployError, ExitCode
from shardwright.plan.kv_pool import PoolPlan
from shardwright.plan.observed import ObservedPool

_BASIS = {
    "given": "memory as the layout's own flag or variable gives it",
    "calibrated": "memory as measured on the calibrated start, moved with the layers",
    "converted": "converted: the calibrated start had another kv_cache_dtype; its prefill workspace is exchanged for "
    "this one's, what else may differ is not known (the one start that was compared came within 0.1 %)",
    "estimated": "estimated: overheads were measured at another TP or PP, or are declared",
    "bound": "upper bound: activations, graphs and buffers are not known and count as nothing",
}


class PlanGroup(click.Group):
    """`plan [LAYOUT]` without a verb of its own, beside `plan search [LAYOUT]`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if not args or (args[0] not in self.commands and args[0] not in ("-h", "--help")):
            args = ["show", *args]
        return super().parse_args(ctx, args)


@click.group(cls=PlanGroup)
def plan() -> None:
    """Predict the KV pool and search partitions.

    `deploy plan [LAYOUT]` shows, per stage: layers, orphans, indexers, weights, bytes per token, memory and blocks, and
    what would change the pool. `deploy plan search [LAYOUT]` ranks partitions. No gate runs here.
    """


@plan.command()
@layout_options
@facts_option
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option("--observed", is_flag=True, help="Compare with what the running engine logged.")
@click.option("--log", "log_file", type=click.Path(path_type=Path), help="With --observed: read this log instead.")
@click.option("--request-tokens", type=click.IntRange(min=1), help="How many requests of so many tokens stay resident.")
@click.pass_context
def show(
    ctx: click.Context,
    layout: str | None,
    sets: tuple[str, ...],
    as_json: bool,
    observed: bool,
    log_file: Path | None,
    request_tokens: int | None,
    facts_file: Path | None,
) -> None:
    """Predict the KV pool of a layout."""
    request = _request(layout, sets, facts_file)
    if observed or log_file:
        _show_observed(ctx, request, log_file, as_json)
        return
    report = report_plan(request)
    if as_json:
        click.echo(json.dumps(report_json(report, request_tokens), indent=1))
        return
    _show_report(request, report, request_tokens)


@plan.command()
@layout_options
@facts_option
@click.option("--pp", type=click.IntRange(min=1), help="Stages; without it every TP x PP that the cards allow.")
@click.option("--top", type=click.IntRange(min=1, max=100), default=8, show_default=True, help="Lines to show.")
@click.option("--floor-gib", type=click.FloatRange(min=0), default=0.0, help="Least KV memory per card of each stage.")
@click.option(
    "--max-imbalance",
    type=click.FloatRange(min=1),
    default=DEFAULT_MAX_IMBALANCE,
    show_default=True,
    help="Compute of the slowest stage over the mean, MTP and head counted.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def search(
    layout: str | None,
    sets: tuple[str, ...],
    pp: int | None,
    top: int,
    floor_gib: float,
    max_imbalance: float,
    facts_file: Path | None,
    as_json: bool,
) -> None:
    """Rank the partitions with the largest KV pool.

    Exact. A stage begins on a layer that computes its own index, unless a patch of the layout covers orphan layers.
    """
    request = _request(layout, sets, facts_file)
    options = SearchOptions(top, floor_gib, max_imbalance)
    result = search_pipeline(request, pp, options) if pp else search_all(request, options)
    if as_json:
        click.echo(json.dumps([found_json(found) for found in result.found], indent=1))
        return
    _show_search(result)


def _request(layout: str | None, sets: tuple[str, ...], facts_file: Path | None) -> PlanRequest:
    request = load_plan_request(layout, os.environ, sets, facts_file)
    for override in request.overrides:
        click.echo(f"override {override}", err=True)
    return request


def _show_report(request: PlanRequest, report: PlanReport, request_tokens: int | None) -> None:
    pool, shape = report.pool, report.capacity.shape
    click.echo(f"{request.deployment.name}: TP={shape.tensor} PP={shape.stages}, split {_text(pool.partition)}")
    rows = [("stage", "layers", "orphans", "indexers", "weights", "B/token", "KV memory", "blocks", "tokens")]
    rows += [
        (
            str(stage.stage),
            f"{stage.first_layer}-{stage.last_layer}",
            _text(stage.orphans) or "-",
            str(stage.indexers),
            _gib(stage.weights_gib),
            f"{stage.kv_bytes_per_token:,}",
            _gib(stage.available_gib),
            _number(stage.blocks),
            _number(stage.tokens),
        )
        for stage in pool.stages
    ]
    _table(rows)
    if pool.pool_tokens is None:
        click.echo(f"pool: unknown, {pool.unknown}")
        click.echo(f"  one request of {_number(pool.max_model_len)} tokens needs {_needs(pool)}")
        return
    click.echo(f"pool: {pool.pool_tokens:,} tokens, bound by stage {pool.bottleneck_stage}{_concurrency(pool)}")
    click.echo(f"  {_BASIS[pool.basis or 'bound']}")
    if request_tokens is not None:
        click.echo(f"  {resident(report, request_tokens)} requests of {request_tokens:,} tokens stay resident")
    _show_alternatives("remedies for orphan layers", report.remedies, pool.pool_tokens)
    _show_alternatives("what would change it", report.moves, pool.pool_tokens)


def _show_alternatives(title: str, items: tuple[Alternative, ...], pool_tokens: int) -> None:
    if not items:
        return
    click.echo(f"{title}:")
    for item in items:
        tokens = "unknown"
        if item.pool_tokens is not None:
            change = f" ({item.pool_tokens / pool_tokens - 1:+.1%})" if pool_tokens else ""
            tokens = f"{item.pool_tokens:,} tokens{change}, bound by stage {item.bottleneck_stage}"
        orphans = f"; orphans {_text(item.orphans)}" if item.orphans else ""
        click.echo(f"  {_text(item.partition)}  {tokens}: {item.note}{orphans}")


def _show_search(result: SearchResult) -> None:
    rows = [("TP", "PP", "split", "pool tokens", "bound by", "orphans", "KV memory GiB", "compute layers", "")]
    rows += [
        (
            str(found.tensor),
            str(found.pipeline),
            _text(found.partition),
            f"{found.pool_tokens:,}",
            f"stage {found.bottleneck_stage}",
            _text(found.orphans) or "-",
            " ".join(f"{gib:.2f}" for gib in found.available_gib),
            " ".join(str(count) for count in found.compute_layers),
            "" if found.fits_one_request is not False else "below max_model_len",
        )
        for found in result.found
    ]
    _table(rows)
    for line in result.why:
        click.echo(line)
    for basis in dict.fromkeys(found.basis for found in result.found):
        click.echo(f"{basis}: {_BASIS[basis].removeprefix(f'{basis}: ')}")


def _show_observed(ctx: click.Context, request: PlanRequest, log_file: Path | None, as_json: bool) -> None:
    observed, differences = compare_with_log(request, _log_lines(request, log_file))
    findings = [row for row in differences if row.is_finding]
    if as_json:
        click.echo(json.dumps({"rows": [difference_json(row) for row in differences]}, indent=1))
    else:
        rows = [("", "predicted", "actual", "difference")]
        rows += [(row.what, _decimal(row.predicted), _decimal(row.actual), _percent(row.share)) for row in differences]
        _table(rows)
        for row in findings:
            click.echo(f"FINDING {row.what} is off by {_percent(row.share)}, more than {TOLERANCE:.0%}")
        _show_calibration(request, observed)
    if findings:
        ctx.exit(ExitCode.DRIFT)


def _show_calibration(request: PlanRequest, observed: ObservedPool) -> None:
    """The block that makes the next plan of this layout start from this log."""
    stages = request.deployment.parallel.pipeline
    available = [observed.stage_gib(stage) for stage in range(stages)]
    if None in available or not any(rank.requested_gib for rank in observed.ranks):
        return
    from shardwright.campaign.planning import planned_partition

    click.echo("to plan other splits from this start, write into the layout:")
    click.echo(
        f"capacity: {{calibration: {{partition: [{_text(planned_partition(request))}], available_gib: "
        f"[{', '.join(f'{gib:.2f}' for gib in available if gib is not None)}], "
        f"tensor: {request.deployment.parallel.tensor}{_cache_settings(request)}}}}}"
    )


def _cache_settings(request: PlanRequest) -> str:
    """What decides the prefill workspace of that start."""
    from shardwright.resolve.capacity import max_model_len
    from shardwright.resolve.flags import flag_value

    length, dtype = max_model_len(request.deployment, request.facts), flag_value(request.deployment, "--kv-cache-dtype")
    parts = (("max_model_len", length), ("kv_cache_dtype", dtype))
    return "".join(f", {key}: {value}" for key, value in parts if value is not None)


def _log_lines(request: PlanRequest, log_file: Path | None) -> list[str]:
    if log_file is not None:
        return read_log(log_file)
    if request.facts.log is not None:
        return request.facts.log.splitlines()
    from shardwright.campaign.engines import runtime_of
    from shardwright.campaign.launch import newest_instance

    runtime = runtime_of(request.deployment.runtime, request.project.root)
    try:
        return list(runtime.logs(newest_instance(runtime, request.deployment.name).name))
    except DeployError as error:
        raise DeployError(
            error.what, why=error.why, fix=error.fix or "start it, or name a log with --log FILE"
        ) from None


def _concurrency(pool: PoolPlan) -> str:
    if pool.max_concurrency is None:
        return ""
    verdict = "" if pool.fits_one_request else ", so not even one fits"
    return f"; {pool.max_concurrency:.2f} requests of {_number(pool.max_model_len)}{verdict}"


def _needs(pool: PoolPlan) -> str:
    return ", ".join(f"{_gib(stage.needed_gib)} on stage {stage.stage}" for stage in pool.stages)


def _table(rows: Sequence[tuple[str, ...]]) -> None:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        click.echo("  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def _text(numbers: tuple[int, ...]) -> str:
    return ",".join(str(number) for number in numbers)


def _number(value: int | None) -> str:
    return "unknown" if value is None else f"{value:,}"


def _gib(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.2f} GiB"


def _decimal(value: float | None) -> str:
    return "unknown" if value is None else f"{value:,.2f}".removesuffix(".00")


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{share:+.2%}"
