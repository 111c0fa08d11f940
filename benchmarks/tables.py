"""Write the tables of docs/benchmarks.md from the stored records, or check that they still say the same.

python benchmarks/tables.py [--check]
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "benchmarks.md"
RESULTS = ROOT / "benchmarks" / "results"
_BLOCK = re.compile(r"(<!-- table: (\S+) (\S+) -->\n).*?(<!-- end -->)", re.DOTALL)

Record = dict[str, Any]


def startup(record: Record) -> str:
    rows = [f"| `{name}` | {r['median']} | {r['min']} | {r['max']} |" for name, r in record["ratio_to_pass"].items()]
    head = ["| command | median ratio | min | max |", "|---|---|---|---|"]
    return "\n".join([f"Python {record['python']}, {record['machine']}, {record['rounds']} rounds.", "", *head, *rows])


def transport(record: Record) -> str:
    checks = [
        f"| {'with' if row['patched'] else 'without'} the patch, {'graph replay' if row['graphs'] else 'eager'} "
        f"| {row['bit_equal']} of {row['steps']} |"
        for row in record["correctness"]
    ]
    costs = [
        "| {tokens} | {without_us} | {with_us} | {added_us} | {added_ns_per_token} |".format(**row)
        for row in record["boundary"]
    ]
    machine = f"{record['gpus']} x {record['gpu']}, torch {record['torch']}, NCCL {record['nccl']}."
    return "\n".join(
        [
            machine,
            "",
            "| steps of 1, 8 and 64 tokens | bit-equal to one stage |",
            "|---|---|",
            *checks,
            "",
            "| tokens | without rows, µs | with rows, µs | added, µs | added per token, ns |",
            "|---|---|---|---|---|",
            *costs,
        ]
    )


def split_errors(rows: list[Record]) -> list[str]:
    """The experts' errors by how they were split."""
    return [
        "| tokens | TP1 error | TP2 error | padded TP3 | stock cut | unit-blind cut | replay equals eager |",
        "|---|---|---|---|---|---|---|",
        *(
            f"| {row['tokens']} | {row['tp1']:.5f} | {row['tp2']:.5f} | {row['padded']:.5f} | {row['stock']:.3f} "
            f"| {row['blind']:.3f} | {row['replays_equal']} of {row['replays']} |"
            for row in rows
        ),
    ]


def flashinfer(record: Record) -> str:
    machine = f"{record['gpu']}, compute capability {record['capability']}, torch {record['torch']}, "
    tactics = record["tactics"]
    zero = record["tails_zero_after_conversion"]
    left = [f"| {width} | {count} of {tactics['all']} |" for width, count in tactics["accepted"].items()]
    return "\n".join(
        [
            f"{machine}FlashInfer {record['flashinfer']}, module sha256 {record['module_sha256'][:12]}.",
            "",
            *split_errors(record["rows"]),
            "",
            f"Faults of the byte audit: {len(record['audit_faults'])}. Ranks whose padding is zero after swap and "
            f"interleave: {sum(zero)} of {len(zero)}.",
            "",
            "| kernel width | tactics of the second product that FlashInfer's shape filter leaves |",
            "|---|---|",
            *left,
        ]
    )


def virtual_tp(record: Record) -> str:
    heads = [
        f"| {phase} | {row['split']:.5f} | {row['single']:.5f} | {'yes' if row['contribution_zero'] else 'NO'} |"
        for phase, row in record["attention"].items()
    ]
    return "\n".join(
        [
            f"{record['gpu']}, compute capability {record['capability']}, driver {record['driver']}, "
            f"torch {record['torch']}, triton {record['triton']}.",
            "",
            *split_errors(record["moe"]["rows"]),
            "",
            "Faults of the byte audit: padded {padded}, stock {stock}, unit-blind {blind}.".format(
                **record["moe"]["audit_faults"]
            ),
            "",
            "| attention and output projection | TP3 error | single error | virtual heads contribute exactly zero |",
            "|---|---|---|---|",
            *heads,
        ]
    )


def patch_check(record: Record) -> str:
    names = {
        "first_check_over_git_apply": "first `deploy patch check` / `git apply --check` of the same edits",
        "check_again_over_git_apply": "the same check repeated, with kept verdicts / the same",
        "build_over_ast_parse": "build of the whole series / one `ast.parse` of the same files",
    }
    rows = [f"| {text} | {record[key]['median']} | {record[key]['worst']} |" for key, text in names.items()]
    head = ["| ratio | median | worst |", "|---|---|---|"]
    counts = f"{record['patches']} patches over {record['releases']} releases; {record['files_built']} files built."
    return "\n".join([counts, "", *head, *rows])


def client(record: Record) -> str:
    def cells(row: Record | None) -> str:
        if row is None:
            return "| | | "
        return f"| {100 * row['median']:.1f} % | {100 * row['p95']:.0f} % | {row['ttft_ms']:.0f} "

    rows = [
        f"| {row['streams']} | {row['period_ms']:g} {cells(row['own'])}{cells(row['vllm_bench'])}|"
        for row in record["rows"]
    ]
    return "\n".join(
        [
            f"Python {record['python']}, {record['machine']}, shared (load {record['load']}), {record['rounds']} "
            f"rounds, {record['events']} events a stream; the mock runs on the same cores.",
            "",
            "| streams | period, ms | own: median gap error | 95th percentile | TTFT, ms "
            "| `vllm bench serve`: median gap error | 95th percentile | TTFT, ms |",
            "|---|---|---|---|---|---|---|---|",
            *rows,
        ]
    )


def detector(record: Record) -> str:
    rows = [
        f"| {row['tokens']:,} | {row['us_per_token']} | {row['over_words']} | {row['over_json']} |"
        for row in record["rows"]
    ]
    return "\n".join(
        [
            f"Python {record['python']}, {record['machine']}, {record['rounds']} rounds, CPU time.",
            "",
            "| tokens | µs a token | over cutting the text into words | over reading its JSON events |",
            "|---|---|---|---|",
            *rows,
        ]
    )


def text(record: Record) -> str:
    return f"```\n{record['text'].rstrip()}\n```"


TABLES: dict[str, Callable[[Record], str]] = {
    "startup": startup,
    "transport": transport,
    "virtual_tp": virtual_tp,
    "flashinfer": flashinfer,
    "patch_check": patch_check,
    "client": client,
    "detector": detector,
    "text": text,
}


def rendered(page: str) -> str:
    """The page with every table made anew from its record."""

    def table(match: re.Match[str]) -> str:
        stored = (RESULTS / match[3]).read_text()
        record = json.loads(stored) if match[3].endswith(".json") else {"text": stored}
        return f"{match[1]}{TABLES[match[2]](record)}\n{match[4]}"

    return _BLOCK.sub(table, page)


def main() -> int:
    page = PAGE.read_text()
    if sys.argv[1:] == ["--check"]:
        return 0 if rendered(page) == page else 1
    PAGE.write_text(rendered(page))
    return 0


if __name__ == "__main__":
    sys.exit(main())
