"""FlashInfer's CUTLASS experts, MXFP4 x BF16 on SM90, split by three with the project's own padding.

    python3 benchmarks/flashinfer_moe.py [--module fused_moe_90.so] [--out FILE]

Needs an SM90 card, torch and the flashinfer-python wheel. FlashInfer builds its whole SM90 module at the first call
(247 sources, hours on few cores); `--module` loads the reduced build of `benchmarks/flashinfer_build.py` instead, which
needs no GPU to make. Exit 1 on a fault, 4 where the card is another one.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import json
import sys
import time
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace

import torch

ROOT = Path(__file__).resolve().parents[1]
PATCH = ROOT / "patches/virtual-tp"
EXPERTS, TOP_K, LIMIT, REPLAYS, ALLOWED, WRONG = 256, 6, 10.0, 20, 1.5, 0.2
MORE_TOKENS = 512
WARM_UPS = 3


def load_numerics():
    spec = importlib.util.spec_from_file_location("numerics", PATCH / "checks/numerics.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules["numerics"] = module
    spec.loader.exec_module(module)
    return module


def use_module(path: Path) -> None:
    """Let FlashInfer load a module that was built before."""
    import tvm_ffi
    from flashinfer.fused_moe import core

    built = SimpleNamespace(build_and_load=lambda: tvm_ffi.load_module(str(path)))
    core.gen_cutlass_fused_moe_sm90_module = lambda *_, **__: built


def converted(layer: dict[str, torch.Tensor]) -> tuple[torch.Tensor, ...]:
    """[w3; w1] interleaved as vLLM does for FlashInfer CUTLASS on SM90: weights 13, weights 2, scales 13, scales 2."""
    from flashinfer.fused_moe import (
        interleave_moe_scales_for_sm90_mixed_gemm as scales,
    )
    from flashinfer.fused_moe import (
        interleave_moe_weights_for_sm90_mixed_gemm as weights,
    )

    w13, s13 = torch.cat([layer["w3"], layer["w1"]], 1), torch.cat([layer["s3"], layer["s1"]], 1)
    return weights(w13, "fp4"), weights(layer["w2"], "fp4"), scales(s13), scales(layer["s2"])


def run(prepared: tuple[torch.Tensor, ...], inputs, tp: int, rank: int, out: torch.Tensor) -> torch.Tensor:
    from flashinfer.fused_moe import cutlass_fused_moe

    x, ids, weights = inputs
    w13, w2, s13, s2 = prepared
    limit = torch.full((EXPERTS,), LIMIT, dtype=torch.float32, device=x.device)
    cutlass_fused_moe(
        input=x,
        token_selected_experts=ids,
        token_final_scales=weights,
        fc1_expert_weights=w13,
        fc2_expert_weights=w2,
        output_dtype=torch.bfloat16,
        output=out,
        quant_scales=[s13, s2],
        swiglu_limit=limit,
        tp_size=tp,
        tp_rank=rank,
        use_w4_group_scaling=True,
    )
    return out


def tails_zero(fragment, buffers: dict[str, torch.Tensor], plan: dict, rank: int) -> bool:
    """Whether the padding is still zero in the kernel's layout: a mask of it, converted alike, meets no bit."""
    arguments = {
        "w13_weight": torch.cat([buffers["w1"], buffers["w3"]], 1),
        "w13_weight_scale": torch.cat([buffers["s1"], buffers["s3"]], 1),
        "w2_weight": buffers["w2"],
        "w2_weight_scale": buffers["s2"],
    }
    axes = {name: tuple(sizes) for name, sizes in plan["entry"]["axes"].items()}
    masks = fragment.tail_masks(arguments, fragment.Plan(plan["entry"]["tp_size"], axes), rank)
    (m1, m3), (t1, t3) = masks["w13_weight"].chunk(2, 1), masks["w13_weight_scale"].chunk(2, 1)
    mask = {"w1": m1, "w3": m3, "s1": t1, "s3": t3, "w2": masks["w2_weight"], "s2": masks["w2_weight_scale"]}
    pairs = zip(converted(mask), converted(buffers), strict=True)
    return not any(bool((a.view(torch.uint8) & b.view(torch.uint8)).any()) for a, b in pairs)


def unwritten(inputs, hidden: int) -> torch.Tensor:
    """An output buffer in which a row that the kernel does not write shows."""
    return torch.full((inputs[0].shape[0], hidden), float("nan"), dtype=torch.bfloat16, device=inputs[0].device)


def accepted_tactics(hidden: int, widths: tuple[int, ...]) -> dict:
    """How many of the second product's tactics FlashInfer's own shape filter leaves at each kernel width.

    A tactic whose tile is 512 deep reads past the scales of a width that 512 does not divide.
    """
    from flashinfer.fused_moe import core

    runner = next(iter(core.get_cutlass_fused_moe_module("90").MoERunner.runner_dict.values()))
    if not hasattr(runner, "get_valid_tactics_for_shape"):
        return {"filter": False}
    counts = {str(width): len(list(runner.get_valid_tactics_for_shape(2, hidden, width))) for width in widths}
    return {"filter": True, "all": int(runner.get_gemm2_tactic_count()), "accepted": counts}


def replays_equal(prepared: tuple[torch.Tensor, ...], numerics, tokens: int, hidden: int, tp: int, rank: int) -> int:
    fixed = [tensor.clone() for tensor in numerics.make_inputs(tokens, EXPERTS, hidden, TOP_K, "cuda", 1)]
    out = unwritten(fixed, hidden)
    with torch.cuda.stream(torch.cuda.Stream()):
        for _ in range(WARM_UPS):
            run(prepared, fixed, tp, rank, out)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run(prepared, fixed, tp, rank, out)
    equal = 0
    for replay in range(REPLAYS):
        fresh = numerics.make_inputs(tokens, EXPERTS, hidden, TOP_K, "cuda", 5000 + replay)
        for target, source in zip(fixed, fresh, strict=True):
            target.copy_(source)
        out.fill_(float("nan"))
        graph.replay()
        torch.cuda.synchronize()
        equal += int(torch.equal(out, run(prepared, fresh, tp, rank, unwritten(fresh, hidden))))
    return equal


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--module", type=Path, help="a reduced build of FlashInfer's SM90 module")
    parser.add_argument("--out", type=Path, help="write the JSON here too")
    arguments = parser.parse_args()
    torch.set_grad_enabled(False)
    torch.backends.cuda.matmul.allow_tf32 = False
    if not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0):
        sys.stderr.write("no card of compute capability 9.0\n")
        return 4
    started = time.time()
    found: dict = {
        "gpu": torch.cuda.get_device_name(),
        "capability": "9.0",
        "torch": torch.__version__,
        "flashinfer": version("flashinfer-python"),
    }
    if arguments.module is not None:
        found["module_sha256"] = hashlib.sha256(arguments.module.read_bytes()).hexdigest()
        use_module(arguments.module.resolve())
    numerics = load_numerics()
    fragment = numerics.load_fragment(PATCH / "virtual_tp.pyfrag")
    plan = json.loads((ROOT / "tests/gpu/plan-flash-tp3.json").read_text())
    tp, hidden, axis = plan["entry"]["tp_size"], plan["sizes"]["hidden"], plan["entry"]["axes"]["routed_intermediate"]
    width = axis[0]
    layer = numerics.make_layer(EXPERTS, hidden, width, "cuda")
    even = (width, width)
    halves = [numerics.rank_layer(fragment, layer, even, width // 2, 2, rank, "padded") for rank in range(2)]
    ranks = [numerics.rank_layer(fragment, layer, axis, plan["kernel"], tp, rank, "padded") for rank in range(tp)]
    found["audit_faults"] = numerics.byte_audit(fragment, layer, ranks, axis)
    found["tails_zero_after_conversion"] = [tails_zero(fragment, ranks[rank], plan, rank) for rank in range(tp)]
    found["rows"] = []
    sets = {"tp1": [converted(layer)], "tp2": [converted(half) for half in halves]}
    sets["padded"] = [converted(buffers) for buffers in ranks]
    for name in ("stock", "blind"):
        sets[name] = [
            converted(numerics.rank_layer(fragment, layer, axis, plan["kernel"], tp, rank, name)) for rank in range(tp)
        ]
    faults = [] if not found["audit_faults"] and all(found["tails_zero_after_conversion"]) else ["byte audit"]
    for tokens in (*numerics.TOKENS, MORE_TOKENS):
        inputs = numerics.make_inputs(tokens, EXPERTS, hidden, TOP_K, "cuda", 100 + tokens)
        reference = numerics.moe(layer, *inputs)
        row: dict = {"tokens": tokens}
        for name, prepared in sets.items():
            parts = [
                run(part, inputs, len(prepared), rank, unwritten(inputs, hidden)) for rank, part in enumerate(prepared)
            ]
            row[name] = numerics.error(sum(part.float() for part in parts), reference)
        row["replays_equal"] = sum(
            replays_equal(part, numerics, tokens, hidden, tp, rank) for rank, part in enumerate(sets["padded"])
        )
        row["replays"] = REPLAYS * tp
        found["rows"].append(row)
        if not row["padded"] <= ALLOWED * max(row["tp1"], row["tp2"]):
            faults.append(f"{tokens} tokens: error {row['padded']:.2e}")
        if row["replays_equal"] != row["replays"]:
            faults.append(f"{tokens} tokens: a replay differs")
        if not min(row["stock"], row["blind"]) > WRONG:
            faults.append(f"{tokens} tokens: a wrong slicing went unnoticed")
    found["tactics"] = accepted_tactics(hidden, (width, width // 2, plan["kernel"]))
    found["faults"] = faults
    found["seconds"] = round(time.time() - started, 1)
    text = json.dumps(found, indent=1)
    sys.stdout.write(text + "\n")
    if arguments.out is not None:
        arguments.out.write_text(text + "\n")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
