"""Odd tensor parallelism on a GPU, with torch and triton alone: `python3 tests/gpu/virtual_tp.py [--out FILE]`.

Pads with the patch's own module, by the project's own plan (`plan-flash-tp3.json`, which a unit test holds equal to
`deploy vtp plan`), and audits with the patch's own audit. Prints one JSON document; exit 1 when something fails.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import subprocess
import sys
import time
from importlib.metadata import version
from pathlib import Path

import torch

HERE = Path(__file__).resolve().parent
PATCH = HERE.parents[1] / "patches/virtual-tp"
EXPERTS, TOP_K, REPLAYS, ALLOWED, WRONG = 256, 6, 20, 1.5, 0.2
SIDES = {"w13": ("w1", "s1", "w3", "s3"), "w2": ("w2", "s2")}


def load(name: str, path: Path):
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def run(moe, layer, inputs) -> torch.Tensor:
    x = inputs[0]
    out = torch.full((x.shape[0], layer["w2"].shape[1]), float("nan"), dtype=torch.bfloat16, device=x.device)
    return moe(layer, *inputs, out)


def poisoned(numerics, layer, width: int, keys, nibbles: int, exponent: int):
    """A rank's buffers with the part behind the logical `width` filled: weights with `nibbles`, scales with a byte."""
    changed = dict(layer)
    for key in keys:
        _, dim, per_unit = numerics.EXPERT_TENSORS[key]
        tensor = layer[key].clone()
        first = width // per_unit
        tensor.narrow(dim + 1, first, tensor.shape[dim + 1] - first).fill_(exponent if key[0] == "s" else nibbles)
        changed[key] = tensor
    return changed


def replays_equal(moe, numerics, ranks, tokens: int, hidden: int, device: str) -> int:
    """Graph replays on fresh inputs that were bit-equal to eager, over all ranks."""
    equal = 0
    for layer in ranks:
        fixed = [tensor.clone() for tensor in numerics.make_inputs(tokens, EXPERTS, hidden, TOP_K, device, 1)]
        out = torch.empty(tokens, hidden, dtype=torch.bfloat16, device=device)
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            moe(layer, *fixed, out)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            moe(layer, *fixed, out)
        for replay in range(REPLAYS):
            fresh = numerics.make_inputs(tokens, EXPERTS, hidden, TOP_K, device, 5000 + replay)
            for target, source in zip(fixed, fresh, strict=True):
                target.copy_(source)
            out.fill_(float("nan"))
            graph.replay()
            torch.cuda.synchronize()
            equal += int(torch.equal(out, run(moe, layer, fresh)))
    return equal


def check_moe(fragment, numerics, moe, plan: dict, device: str, experts: int, hidden: int) -> dict:
    axis = tuple(plan["entry"]["axes"]["routed_intermediate"])
    original, virtual = axis
    tp, kernel = plan["entry"]["tp_size"], plan["kernel"]
    layer = numerics.make_layer(experts, hidden, original, device)
    sets = {
        "tp1": [layer],
        "tp2": [
            numerics.rank_layer(fragment, layer, (original, original), original // 2, 2, rank, "padded")
            for rank in range(2)
        ],
    }
    for name in ("padded", "stock", "blind"):
        sets[name] = [numerics.rank_layer(fragment, layer, axis, kernel, tp, rank, name) for rank in range(tp)]
    audit = {name: len(numerics.byte_audit(fragment, layer, sets[name], axis)) for name in ("padded", "stock", "blind")}
    share = virtual // tp
    every = (*SIDES["w13"], *SIDES["w2"])
    for name, keys, nibbles, exponent in (
        ("poison_both", every, 0x77, 124),
        ("poison_w13_only", SIDES["w13"], 0x77, 124),
        ("poison_w2_only", SIDES["w2"], 0x77, 124),
        ("scale_tail_2_127", ("s1", "s3", "s2"), 0, 254),
        ("scale_tail_nan", ("s2",), 0, 255),
    ):
        sets[name] = [poisoned(numerics, buffers, share, keys, nibbles, exponent) for buffers in sets["padded"]]
    rows = []
    for tokens in numerics.TOKENS:
        inputs = numerics.make_inputs(tokens, experts, hidden, min(TOP_K, experts), device, 100 + tokens)
        reference = numerics.moe(layer, *inputs)
        row: dict = {"tokens": tokens, "experts": int(inputs[1].unique().numel())}
        sums = {}
        for name, ranks in sets.items():
            sums[name] = sum(run(moe, buffers, inputs).float() for buffers in ranks)
            row[name] = numerics.error(sums[name], reference)
        row["finite"] = bool(torch.isfinite(sums["padded"]).all())
        again = sum(run(moe, buffers, inputs).float() for buffers in sets["padded"])
        row["eager_again_equal"] = bool(torch.equal(again, sums["padded"]))
        for name in ("poison_w13_only", "poison_w2_only", "scale_tail_2_127"):
            row[f"{name}_bit_equal"] = bool(torch.equal(sums[name], sums["padded"]))
        row["scale_tail_nan_seen"] = not bool(torch.isfinite(sums["scale_tail_nan"]).all())
        del row["scale_tail_nan"]
        if device == "cuda":
            row["replays_equal"] = replays_equal(moe, numerics, sets["padded"], tokens, hidden, device)
            row["replays"] = REPLAYS * tp
        rows.append(row)
    return {"audit_faults": audit, "rows": rows}


def faults_of(found: dict) -> list[str]:
    """What speaks against the padding, and against the check itself where a control went unnoticed."""
    faults = []
    audit = found["moe"]["audit_faults"]
    if audit["padded"] or not audit["stock"] or not audit["blind"]:
        faults.append(f"byte audit: {audit}")
    for row in found["moe"]["rows"]:
        wanted = {
            "error above that of TP1 and TP2": row["padded"] <= ALLOWED * max(row["tp1"], row["tp2"]),
            "NaN or Inf": row["finite"],
            "two eager runs differ": row["eager_again_equal"],
            "a replay differs from eager": row.get("replays_equal") == row.get("replays"),
            "stock slicing went unnoticed": row["stock"] > WRONG,
            "blind slicing went unnoticed": row["blind"] > WRONG,
            "a stale tail went unnoticed": not row["poison_both"] < 10 * row["padded"],
            "a NaN scale in the tail went unnoticed": row["scale_tail_nan_seen"],
            "a zero weight with a large scale shows": row["scale_tail_2_127_bit_equal"],
        }
        faults += [f"{row['tokens']} tokens: {text}" for text, good in wanted.items() if not good]
    for phase, row in found["attention"].items():
        good = (
            row["virtual_heads_nonzero"] and row["virtual_groups_zero"] and row["contribution_zero"] and row["finite"]
        )
        if not good or row["split"] > ALLOWED * row["single"] or row["real_heads_off_by"] > 2**-7:
            faults.append(f"attention in {phase}: {row}")
    return faults


def driver() -> str:
    query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    return subprocess.run(query, capture_output=True, text=True, check=True).stdout.split()[0]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, help="write the JSON here too")
    parser.add_argument("--device", default="cuda", help="cpu with TRITON_INTERPRET=1 tries the script itself")
    parser.add_argument("--experts", type=int, default=EXPERTS)
    parser.add_argument("--hidden", type=int, default=0, help="0: the plan's")
    arguments = parser.parse_args()
    torch.set_grad_enabled(False)
    torch.backends.cuda.matmul.allow_tf32 = False
    sys.path.insert(0, str(HERE))
    from mxfp4_moe import moe

    plan = json.loads((HERE / "plan-flash-tp3.json").read_text())
    numerics = load("numerics", PATCH / "checks/numerics.py")
    fragment = numerics.load_fragment(PATCH / "virtual_tp.pyfrag")
    started = time.time()
    found: dict = {"torch": torch.__version__, "triton": version("triton"), "device": arguments.device}
    if arguments.device == "cuda":
        major, minor = torch.cuda.get_device_capability()
        found |= {"gpu": torch.cuda.get_device_name(), "capability": f"{major}.{minor}", "driver": driver()}
    hidden = arguments.hidden or plan["sizes"]["hidden"]
    found["moe"] = check_moe(fragment, numerics, moe, plan, arguments.device, arguments.experts, hidden)
    found["attention"] = numerics.check_attention(fragment, plan, arguments.device)
    found["faults"] = faults_of(found)
    found["seconds"] = round(time.time() - started, 1)
    text = json.dumps(found, indent=1)
    sys.stdout.write(text + "\n")
    if arguments.out is not None:
        arguments.out.write_text(text + "\n")
    return 1 if found["faults"] else 0


if __name__ == "__main__":
    sys.exit(main())
