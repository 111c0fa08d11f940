"""The verb `needle`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import cast

import click

from shardwright.cli.common import layout_options, target_server
from shardwright.cli.probe_common import (
    ProgressLine,
    concurrency_option,
    mode_options,
    open_journal,
    output_option,
    reach,
    server_options,
    show_report,
    show_start,
)
from shardwright.cli.probe_edges import known_edges, say_warning, topk_option
from shardwright.errors import UsageError
from shardwright.probes.client import Api
from shardwright.probes.needle.map import html_map, svg_map, text_map
from shardwright.probes.needle.plan import QUICK_DEPTHS, full_plan, own_plan, quick_lengths, quick_plan
from shardwright.probes.needle.run import run_needle
from shardwright.probes.needle.text import WORDINGS, WordingName
from shardwright.probes.stored import read_records


@click.command()
@layout_options
@server_options
@mode_options
@click.option("--lengths", metavar="N,N,…", help="Ask at these numbers of prompt tokens.")
@click.option("--depths", metavar="P,P,…", help="Hide the needle at these depths, in percent.")
@click.option("--seeds", type=click.IntRange(1, 100), default=1, show_default=True, help="Texts for each place.")
@click.option("--thinking", is_flag=True, help="With --lengths or --depths: ask with thinking on too.")
@click.option("--api", type=click.Choice(["chat", "completions"]), help="Which interface to ask.")
@click.option("--wording", type=click.Choice(list(WORDINGS)), help="How facts are put; else the layout's.")
@click.option("--max-tokens", type=click.IntRange(min=1), help="Room for an answer, for models that always think.")
@topk_option
@click.option("--map", "map_file", metavar="FILE", help="Write the map as .svg or .html.")
@concurrency_option
@output_option
@click.pass_context
def needle(
    ctx: click.Context,
    layout: str | None,
    sets: tuple[str, ...],
    base_url: str | None,
    api_key_env: str | None,
    as_json: bool,
    mode: str | None,
    lengths: str | None,
    depths: str | None,
    seeds: int,
    thinking: bool,
    api: str | None,
    wording: str | None,
    max_tokens: int | None,
    index_topk: int | None,
    map_file: str | None,
    concurrency: int,
    output: str | None,
) -> None:
    """Find one fact in texts of exact lengths.

    Each text is made for its place, with other codes as decoys, and sized through the server's own tokenizer. It is
    asked cold and again from the cache; then eight at a time. Quick (the default) takes three lengths around
    index_topk; full takes both sides of every edge, a ladder to the longest prompt, and thinking. Exit 2 when a needle
    is lost for good, 3 when nothing can be said, 4 when nobody answers.
    """
    if map_file is not None and Path(map_file).suffix not in (".svg", ".html"):
        raise UsageError(f"--map {map_file!r} is neither .svg nor .html")
    if (lengths is not None or depths is not None) and mode is not None:
        raise UsageError("--lengths and --depths make a plan of their own", fix=f"leave out --{mode}")
    target = target_server(layout, sets, base_url, api_key_env)
    server = reach(target)
    edges = known_edges(layout, sets, server, index_topk)
    chosen = cast(Api, api or ("chat" if server.capabilities.chat else "completions"))
    own = target.probes.needle_wording if target.probes else "access-code"
    words = cast(WordingName, wording or own)
    if lengths is not None or depths is not None:
        plan = own_plan(
            edges,
            _numbers(lengths, "--lengths", 1_000_000_000) if lengths else quick_lengths(edges),
            _numbers(depths, "--depths", 100) if depths else QUICK_DEPTHS,
            api=chosen,
            wording=words,
            deployment=target.digest,
            seeds=range(1, seeds + 1),
            thinking=thinking,
        )
    else:
        make = full_plan if mode == "full" else quick_plan
        plan = make(edges, api=chosen, wording=words, deployment=target.digest)
    if max_tokens is not None:
        plan = replace(plan, answer_tokens=max_tokens)
    with open_journal(target, "needle", plan.id(server), output, api_key_env) as journal:
        show_start(server, plan.budget(), journal)
        say_warning(plan.warning())
        with ProgressLine("lost", quiet=("EXACT",)) as shown:
            report = run_needle(server, plan, journal, concurrency=concurrency, on_progress=shown.update)
        path = journal.path
    records = [record for record in read_records(path) if record.get("plan") == report.plan] if path.is_file() else []
    if map_file is not None:
        title = f"Needles found by {server.model}"
        make_map = svg_map if map_file.endswith(".svg") else html_map
        Path(map_file).write_text(make_map(records, title), encoding="utf-8")
    if not as_json and records:
        click.echo(text_map(records))
    show_report(report, as_json)
    ctx.exit(report.exit_code)


def _numbers(text: str, option: str, most: int) -> tuple[int, ...]:
    numbers = []
    for part in text.split(","):
        word = part.strip()
        if not (word.isascii() and word.isdecimal() and len(word) < 12 and int(word) <= most):
            raise UsageError(f"{option} {text!r}: {word!r} is no number up to {most}", fix=f"write {option} 10,20")
        numbers.append(int(word))
    return tuple(dict.fromkeys(numbers))
