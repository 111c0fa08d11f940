"""Load a DSpark draft of two layers by the engine's own, patched `load_weights`, as every rank: `dspark_load.py PLAN`.

Prints JSON: for each rank what the audit logged, or what it refused; `unpadded` leaves the draft's experts unpadded.
"""

from __future__ import annotations

import json
import logging
import sys
from pathlib import Path
from unittest import mock

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "patches/virtual-tp/checks"))

from engine_layers import as_rank, engine, fp8, make_layer, padded_config
from position_coded import checkpoint
from torch import nn

DRAFTS = 2


class Kept(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


def make_draft(plan: dict, rank: int) -> nn.Module:
    """The draft's own class around layers at their padded sizes; its heads, which no rank cuts, are left out."""
    from vllm.models.deepseek_v4.nvidia.dspark import DSparkDeepseekV4ForCausalLM

    sizes = {**plan["sizes"], "kernel_heads": plan["kernel_heads"]}
    draft = DSparkDeepseekV4ForCausalLM.__new__(DSparkDeepseekV4ForCausalLM)
    nn.Module.__init__(draft)
    draft.config, draft.quant_config, draft.pad_shared_expert = padded_config(plan), fp8(), True
    layers = [
        make_layer(sizes, draft.config, plan["entry"]["tp_size"], rank, draft.quant_config) for _ in range(DRAFTS)
    ]
    for layer in layers:
        layer.ffn.finalize_mega_moe_weights = lambda: None
    draft.model = nn.Module()
    draft.model.layers, draft.model.confidence_head = nn.ModuleList(layers), None
    return draft


def load(plan: dict, rank: int) -> list[str]:
    """What the audit says of one rank: its log lines, or its complaint."""
    from vllm._overlay import virtual_tp

    virtual_tp._state = None
    kept = Kept()
    logger = logging.getLogger("vllm._overlay")
    logger.addHandler(kept)
    logger.setLevel(logging.INFO)
    stream = (pair for number in range(DRAFTS) for pair in checkpoint(plan["sizes"], f"mtp.{number}"))
    try:
        with as_rank(rank, plan["entry"]["tp_size"]):
            make_draft(plan, rank).load_weights(stream)
    except RuntimeError as error:
        return [str(error)]
    finally:
        logger.removeHandler(kept)
    return kept.lines


def main() -> None:
    from vllm._overlay import virtual_tp

    plan = json.loads(Path(sys.argv[1]).read_text())
    ranks = range(plan["entry"]["tp_size"])
    pad = virtual_tp.pad_tensor

    def but_for_experts(tensor, dim, original, virtual, name=""):
        return tensor if ".experts." in name else pad(tensor, dim, original, virtual, name)

    with engine():
        found = {"padded": [load(plan, rank) for rank in ranks]}
        with mock.patch.object(virtual_tp, "pad_tensor", but_for_experts):
            found["unpadded"] = [load(plan, rank) for rank in ranks]
    sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
