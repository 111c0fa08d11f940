"""The verb `needle`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import cast

import click

from shardwright.cli.probe_common import (
    Asked,
    ProgressLine,
    concurrency_option,
    mode_options,
    output_option,
    probe_command,
    show_report,
)
from shardwright.cli.probe_edges import known_edges, topk_option
from shardwright.connect.atomic import write_file
from shardwright.errors import ExitCode, UsageError
from shardwright.probes.client import Api
from shardwright.probes.edges import Edges
from shardwright.probes.needle.map import html_map, svg_map, text_map
from shardwright.probes.needle.plan import QUICK_DEPTHS, NeedlePlan, full_plan, own_plan, quick_lengths, quick_plan
from shardwright.probes.needle.run import run_needle
from shardwright.probes.needle.text import WORDINGS, WordingName


def _numbers_to(most: int) -> Callable[[click.Context, click.Parameter, str | None], tuple[int, ...] | None]:
    """Reads an option's `10,20` as whole numbers up to `most`, each once."""

    def read(_ctx: click.Context, option: click.Parameter, text: str | None) -> tuple[int, ...] | None:
        if text is None:
            return None
        words = [part.strip() for part in text.split(",")]
        for word in words:
            if not (word.isascii() and word.isdecimal() and len(word) < 12 and int(word) <= most):
                name = option.opts[0]
                raise UsageError(f"{name} {text!r}: {word!r} is no number up to {most}", fix=f"write {name} 10,20")
        return tuple(dict.fromkeys(int(word) for word in words))

    return read


@click.command()
@probe_command
@mode_options
@click.option(
    "--lengths", callback=_numbers_to(1_000_000_000), metavar="N,N,…", help="Ask at these numbers of prompt tokens."
)
@click.option(
    "--depths", callback=_numbers_to(100), metavar="P,P,…", help="Hide the needle at these depths, in percent."
)
@click.option("--thinking", is_flag=True, help="With --lengths or --depths: ask with thinking on too.")
@click.option("--seeds", type=click.IntRange(1, 100), default=1, show_default=True, help="The same: texts per place.")
@click.option("--api", type=click.Choice(["chat", "completions"]), help="Which interface to ask.")
@click.option("--wording", type=click.Choice(list(WORDINGS)), help="How facts are put; else the layout's.")
@click.option("--max-tokens", type=click.IntRange(min=1), help="Room for an answer, for models that always think.")
@topk_option
@click.option(
    "--map",
    "map_file",
    type=click.Path(dir_okay=False, writable=True, path_type=Path),
    metavar="FILE",
    help="Write the map as .svg or .html.",
)
@concurrency_option
@output_option
def needle(
    asked: Asked,
    mode: str | None,
    lengths: tuple[int, ...] | None,
    depths: tuple[int, ...] | None,
    seeds: int,
    thinking: bool,
    api: str | None,
    wording: str | None,
    max_tokens: int | None,
    index_topk: int | None,
    map_file: Path | None,
    concurrency: int,
) -> ExitCode:
    """Find one fact in texts of exact lengths.

    Each text is made for its place, with other codes as decoys, and sized through the server's own tokenizer. It is
    asked cold and again from the cache; then eight at a time. Quick (the default) takes three lengths around
    index_topk; full takes both sides of every edge, a ladder to the longest prompt, and thinking. Exit 2 when a needle
    is lost for good, 3 when nothing can be said, 4 when nobody answers.
    """
    if map_file is not None and map_file.suffix not in (".svg", ".html"):
        raise UsageError(f"--map {map_file} is neither .svg nor .html")
    own_places = lengths is not None or depths is not None
    if own_places and mode is not None:
        raise UsageError("--lengths and --depths make a plan of their own", fix=f"leave out --{mode}")
    if not own_places and (thinking or seeds > 1):
        raise UsageError("--thinking and --seeds say how --lengths and --depths are asked", fix="add --lengths N,N")
    chosen = cast(Api, api or ("chat" if asked.server.capabilities.chat else "completions"))
    own = asked.target.probes.needle_wording if asked.target.probes else "access-code"
    plan = _plan(
        known_edges(asked, index_topk),
        mode=mode,
        lengths=lengths,
        depths=depths,
        seeds=seeds,
        thinking=thinking,
        api=chosen,
        wording=cast(WordingName, wording or own),
        deployment=asked.target.digest,
    )
    if max_tokens is not None:
        plan = replace(plan, answer_tokens=max_tokens)
    progress = ProgressLine("lost", quiet=("EXACT",))
    with asked.trials("needle", plan, progress, plan.warning()) as (journal, on_progress):
        report = run_needle(asked.server, plan, journal, concurrency=concurrency, on_progress=on_progress)
    records = [record for record in journal.records if record.get("plan") == report.plan]
    if not asked.as_json and records:
        click.echo(text_map(records))
    show_report(report, asked.as_json)
    if map_file is not None:
        make_map = svg_map if map_file.suffix == ".svg" else html_map
        write_file(map_file, make_map(records, f"Needles found by {asked.server.model}").encode())
    return report.exit_code


def _plan(
    edges: Edges,
    *,
    mode: str | None,
    lengths: tuple[int, ...] | None,
    depths: tuple[int, ...] | None,
    seeds: int,
    thinking: bool,
    api: Api,
    wording: WordingName,
    deployment: str,
) -> NeedlePlan:
    if lengths is None and depths is None:
        make = full_plan if mode == "full" else quick_plan
        return make(edges, api=api, wording=wording, deployment=deployment)
    return own_plan(
        edges,
        lengths or quick_lengths(edges),
        depths or QUICK_DEPTHS,
        api=api,
        wording=wording,
        deployment=deployment,
        seeds=range(1, seeds + 1),
        thinking=thinking,
    )
