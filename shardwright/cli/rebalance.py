"""The `rebalance` verbs: another layer split, tried against the one that runs, with one honest verdict."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

import click

from shardwright.cli.common import load, show_findings
from shardwright.cli.probe_common import styled
from shardwright.cli.up import confirm, message_option, say, show_phase
from shardwright.errors import ExitCode, UsageError

if TYPE_CHECKING:
    from shardwright.campaign.preflight import Preflight
    from shardwright.campaign.rebalance.arms import Arm, Campaign
    from shardwright.campaign.rebalance.comparison import Comparison
    from shardwright.campaign.request import Request
    from shardwright.campaign.verify import Verified

layout_option = click.option("--layout", metavar="LAYOUT", help="The layout; the default of configs/deploy.yaml else.")
sets_option = click.option("--set", "sets", multiple=True, metavar="KEY=VALUE", help="Override one layout key.")
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


@click.group()
def rebalance() -> None:
    """Try another layer split against the one that runs.

    preflight looks and touches nothing; control asks the running split; boot SPLIT stops it and starts the other;
    verify asks that one the same; verdict compares. A step that was cut off is taken up by the same command.
    """


@rebalance.command()
@click.argument("split", required=False, metavar="[SPLIT]")
@layout_option
@sets_option
@json_option
@click.pass_context
def preflight(ctx: click.Context, split: str | None, layout: str | None, sets: tuple[str, ...], as_json: bool) -> None:
    """Judge a split before anything is touched.

    Stage intervals, the layers that compute their own index, those that a patch must cover, and those that stay
    unsafe; and a counter-example on which the older rule is wrong, as a check that this one is not always true. Exit 1
    when a layer stays unsafe or a gate refuses.
    """
    from shardwright.campaign.preflight import preflight as look

    found = look(load(layout, with_split(sets, split)))
    if as_json:
        import msgspec

        click.echo(json.dumps(msgspec.to_builtins(found) | {"passed": found.passed}, indent=1))
    else:
        _show_preflight(found)
    if not found.passed:
        ctx.exit(ExitCode.REFUSED)


@rebalance.command()
@layout_option
@sets_option
@click.option("--mode", type=click.Choice(["quick", "default", "full"]), default="default", show_default=True)
@message_option
@json_option
@click.pass_context
def control(
    ctx: click.Context, layout: str | None, sets: tuple[str, ...], mode: Any, message: str, as_json: bool
) -> None:
    """Ask the running split everything, as the reference.

    Exit 0 when it passes, else as `deploy verify`; an unhealthy control is kept too, and the verdict says so.
    """
    from shardwright.campaign.rebalance.steps import run_control

    arm, verified = run_control(load(layout, sets), sets, os.environ, mode, message=message, say=say)
    _show_arm(arm, verified, as_json)
    ctx.exit(verified.exit_code)


@rebalance.command()
@click.argument("split", required=False, metavar="[SPLIT]")
@layout_option
@sets_option
@click.option("--yes", is_flag=True, help="Do not ask before the running split is stopped.")
@click.option("--restore/--no-restore", default=True, show_default=True, help="Start the control again on failure.")
@message_option
@json_option
def boot(
    split: str | None, layout: str | None, sets: tuple[str, ...], yes: bool, restore: bool, message: str, as_json: bool
) -> None:
    """Stop the control and start the candidate with another SPLIT.

    Gates and overlay come first; nothing is stopped when they refuse. The control is kept, and started again when the
    candidate does not come up.
    """
    from shardwright.campaign.rebalance.arms import read_campaign
    from shardwright.campaign.rebalance.switch import boot_candidate

    request = load(layout, with_split(sets, split), host=True)
    show_findings(request, infos=False)
    name = request.deployment.name
    running = read_campaign(request.project.state_dir(), name).arm("control").record.instance
    if not yes:
        confirm(f"stop {running} and start {request.deployment.instance_name}?")
    arm = boot_candidate(
        request,
        with_split(sets, split),
        os.environ,
        restore=restore,
        message=message,
        say=say,
        on_phase=show_phase,
    )
    if as_json:
        click.echo(json.dumps({"instance": arm.record.instance, "partition": arm.partition, "run": arm.run}, indent=1))
    else:
        click.echo(f"{arm.record.instance} answers with {','.join(map(str, arm.partition))}; next: rebalance verify")


@rebalance.command()
@layout_option
@message_option
@json_option
@click.pass_context
def verify(ctx: click.Context, layout: str | None, message: str, as_json: bool) -> None:
    """Ask the candidate what the control was asked."""
    from shardwright.campaign.rebalance.steps import verify_candidate

    request, _ = _candidate(layout)
    arm, verified = verify_candidate(request, os.environ, message=message, say=say)
    _show_arm(arm, verified, as_json)
    ctx.exit(verified.exit_code)


@rebalance.command()
@layout_option
@json_option
@click.pass_context
def verdict(ctx: click.Context, layout: str | None, as_json: bool) -> None:
    """Compare the two arms and say PASS, FAIL, INCONCLUSIVE or CONTROL_UNHEALTHY.

    Exit 0 pass, 2 fail, 3 inconclusive or an unhealthy control. The bundle in runs/ holds both arms whole.
    """
    from shardwright.campaign.rebalance.comparison import EXIT_CODES
    from shardwright.campaign.rebalance.steps import decide

    request, campaign = _candidate(layout)
    comparison, folder = decide(request, campaign)
    if as_json:
        click.echo(json.dumps(comparison.as_data() | {"run": str(folder)}, indent=1))
    else:
        _show_comparison(comparison, campaign)
        click.echo(f"evidence: {folder}")
        if comparison.verdict != "PASS":
            click.echo(f"next: deploy rollback {request.deployment.name}, or deploy report {folder}")
    ctx.exit(EXIT_CODES[comparison.verdict])


def with_split(sets: tuple[str, ...], split: str | None) -> tuple[str, ...]:
    """The overrides of a candidate: those given, and its split."""
    return sets if split is None else (*sets, f"parallel.layer_partition=[{split}]")


def _candidate(layout: str | None) -> tuple[Request, Campaign]:
    """The request of the booted candidate, with the overrides that it was booted with."""
    from shardwright.campaign.rebalance.arms import read_campaign

    base = load(layout, ())
    campaign = read_campaign(base.project.state_dir(), base.deployment.name)
    arm = campaign.arm("candidate")
    request = load(layout, arm.sets, host=True)
    if request.deployment.digest != arm.record.digest:
        raise UsageError(
            f"the layout says something else now than when {arm.record.instance} was booted",
            why="its verdict would be of another deployment",
            fix="undo the change, or boot the candidate again",
        )
    return request, campaign


def _show_preflight(found: Preflight) -> None:
    click.echo(f"{found.layout}: {','.join(map(str, found.partition))}")
    for stage in found.stages:
        own = _layers(stage.self_computing)
        click.echo(f"  stage {stage.stage}: layers [{stage.first_layer}, {stage.end_layer})")
        if found.indexed:
            click.echo(f"    compute their own index: {own}")
            if stage.orphans:
                click.echo(f"    begin without one: {_layers(stage.orphans)}")
    if found.indexed:
        orphans = [layer for stage in found.stages for layer in stage.orphans]
        by = f" (covered by {', '.join(found.covering_patches)})" if found.covering_patches else ""
        click.echo(f"  layers that a patch must cover: {_layers(orphans)}{by if orphans else ''}")
        click.echo(f"  residual unsafe layers: {_layers(found.residual_unsafe)}")
        example = found.counter_example
        if example is not None:
            click.echo(
                f"  counter-example {','.join(map(str, example.partition))}: even intervals miss "
                f"{_layers(example.missed_by_even_intervals)}, true intervals miss none: the check can say no"
            )
    for refusal in found.refusals:
        click.echo(f"  refused by {refusal}")
    click.echo(styled("PASS" if found.passed else "FAIL"))


def _show_arm(arm: Arm, verified: Verified, as_json: bool) -> None:
    if as_json:
        row = {
            "arm": arm.role,
            "instance": arm.record.instance,
            "partition": arm.partition,
            "verdict": verified.verdict,
            "reasons": verified.reasons,
            "probes": {report["probe"]: report["verdict"] for report in verified.reports},
            "run": arm.run,
        }
        click.echo(json.dumps(row, indent=1))
        return
    click.echo(f"{arm.role} {','.join(map(str, arm.partition))}: {styled(verified.verdict)}")
    for reason in verified.reasons:
        click.echo(f"  {reason}")
    click.echo(f"  evidence: {arm.run}")


def _show_comparison(comparison: Comparison, campaign: Campaign) -> None:
    arms = [campaign.arm("control"), campaign.arm("candidate")]
    heads = ("", *(f"{arm.role} {','.join(map(str, arm.partition))}" for arm in arms), "")
    lines = [heads, *((row.metric, *row.cells, row.verdict or "") for row in comparison.rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(3)]
    for line in lines:
        cells = "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=False))
        click.echo(f"{cells}  {line[3]}".rstrip())
    click.echo(styled(comparison.verdict))
    for reason in comparison.reasons:
        click.echo(f"  {reason}")


def _layers(layers: Any) -> str:
    return ", ".join(map(str, layers)) or "none"
