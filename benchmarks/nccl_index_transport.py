"""Two pipeline stages on two GPUs: does index transport hold over NCCL and CUDA graphs, and what does it cost?

    torchrun --nproc-per-node 2 benchmarks/nccl_index_transport.py OUT.json

Runs the patch's own module (patches/pp-index-transport), not a copy, on a small index-sharing model: layers that
compute their top-k rows into a persistent buffer, and layers that reuse them. Stage 1 starts on a layer that reuses.
Layer-level evidence: no vLLM runs here; the send order, the persistent buffers sliced to the batch and the graph replay
follow it.
"""

from __future__ import annotations

import json
import os
import platform
import statistics
import sys
import types
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist

ROOT = Path(__file__).resolve().parents[1]
FRAGMENT = ROOT / "patches" / "pp-index-transport" / "pp_index_transport.pyfrag"

HIDDEN, TOPK, MAX_TOKENS = 6144, 2048, 8192
LAYERS, SPLIT = 10, (4, 6)  # freq 4, offset 3: full layers 0,1,2,6; stage 1 starts on layer 4, orphans 4 and 5
CONFIG = SimpleNamespace(num_hidden_layers=LAYERS, index_topk=TOPK, index_topk_freq=4, index_skip_topk_offset=3)
GRAPH_BATCHES = (1, 8, 64)
TIMED_BATCHES = (1, 8, 64, 512, 2048, 8192)
ROUNDS = 60


class IntermediateTensors:
    """The shape of vllm.sequence.IntermediateTensors that the patch relies on."""

    def __init__(self, tensors: dict[str, torch.Tensor]) -> None:
        self.tensors = tensors

    def __getitem__(self, key: str) -> torch.Tensor:
        return self.tensors[key]


def load_patch(rank: int) -> Any:
    """The patch's module, with the three engine names that it imports replaced by their shapes."""
    group = SimpleNamespace(is_first_rank=rank == 0, is_last_rank=rank == 1, rank_in_group=rank)
    stand_ins = {
        "vllm": {},
        "vllm.distributed": {"get_pp_group": lambda: group},
        "vllm.sequence": {"IntermediateTensors": IntermediateTensors},
        "vllm.logger": {"init_logger": lambda name: SimpleNamespace(info=lambda text, *args: print(text % args))},
    }
    for name, content in stand_ins.items():
        sys.modules[name] = types.ModuleType(name)
        vars(sys.modules[name]).update(content)
    module = types.ModuleType("pp_index_transport")
    exec(compile(FRAGMENT.read_text(), str(FRAGMENT), "exec"), vars(module))
    return module


class Stage(torch.nn.Module):
    """Layers [start_layer, end_layer) of the model, with the rows in one persistent buffer."""

    def __init__(self, patch: Any, start_layer: int, end_layer: int, device: torch.device) -> None:
        super().__init__()
        self.patch, self.start_layer, self.end_layer = patch, start_layer, end_layer
        self.topk_indices_buffer = torch.full((MAX_TOKENS, TOPK), -1, dtype=torch.int32, device=device)
        self.weights = []
        for layer in range(start_layer, end_layer):
            generator = torch.Generator(device="cpu").manual_seed(layer)
            weight = torch.randn(HIDDEN, HIDDEN, generator=generator) / HIDDEN**0.5
            self.weights.append(weight.to(device, torch.bfloat16))

    def forward(self, hidden: torch.Tensor, residual: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        tokens = hidden.shape[0]
        for layer, weight in zip(range(self.start_layer, self.end_layer), self.weights, strict=True):
            if not self.patch.is_shared(CONFIG, layer):
                scores = hidden.float().abs()
                self.topk_indices_buffer[:tokens].copy_(scores.topk(TOPK, dim=-1).indices.to(torch.int32))
            # An unwritten or stale row changes the answer; out-of-range garbage is masked as the engine masks it.
            rows = self.topk_indices_buffer[:tokens].long().clamp(0, HIDDEN - 1)
            picked = torch.zeros_like(hidden).scatter(1, rows, hidden.gather(1, rows))
            residual = residual + picked
            hidden = torch.tanh(residual @ weight)
        return hidden, residual


def make_empty(batch_size: int, dtype: torch.dtype, device: torch.device) -> IntermediateTensors:
    keys = ("hidden_states", "residual")
    return IntermediateTensors({key: torch.zeros(batch_size, HIDDEN, dtype=dtype, device=device) for key in keys})


def causal_lm(patch: Any, stage: Stage) -> Any:
    lm = SimpleNamespace(config=CONFIG, model=stage, make_empty_intermediate_tensors=make_empty)
    patch.attach(lm, SimpleNamespace(parallel_config=SimpleNamespace(use_ubatching=False)))
    return lm


def inputs(step: int, tokens: int, device: torch.device) -> torch.Tensor:
    generator = torch.Generator(device="cpu").manual_seed(1000 + step)
    return torch.randn(tokens, HIDDEN, generator=generator).to(device, torch.bfloat16)


def forward_stage(patch: Any, lm: Any, received: IntermediateTensors | None, first_input: torch.Tensor | None) -> Any:
    """What the patched forward of the causal LM does on one stage."""
    if received is None:
        hidden, residual = lm.model(first_input, torch.zeros_like(first_input))
    else:
        patch.receive(lm, received)
        hidden, residual = lm.model(received["hidden_states"], received["residual"])
    return patch.send(lm, IntermediateTensors({"hidden_states": hidden, "residual": residual}))


def exchange(rank: int, output: Any, landing: dict[str, torch.Tensor] | None, keys: list[str], tokens: int) -> None:
    """Send in the key order of the sender's dict, receive in the same; the metadata went ahead."""
    works = []
    if rank == 0:
        works = [dist.isend(output.tensors[key].contiguous(), 1) for key in keys]
    else:
        assert landing is not None
        works = [dist.irecv(landing[key][:tokens], 0) for key in keys]
    for work in works:
        work.wait()


def agree_on_keys(rank: int, output: Any) -> list[str]:
    box: list[Any] = [list(output.tensors) if rank == 0 else None]
    dist.broadcast_object_list(box, src=0)
    return list(box[0])


def check_correctness(rank: int, device: torch.device, patched: bool, graphs: bool) -> dict[str, Any]:
    """Steps of changing size: the last stage's output against the whole model on one GPU, bit by bit."""
    patch = load_patch(rank)
    bounds = ((0, SPLIT[0]), (SPLIT[0], LAYERS))
    stage = Stage(patch, *bounds[rank], device)
    lm = causal_lm(patch, stage)
    if not patched:
        lm._topk_receives = lm._topk_sends = False
        lm.make_empty_intermediate_tensors = make_empty
    whole = Stage(patch, 0, LAYERS, device) if rank == 1 else None
    persistent = lm.make_empty_intermediate_tensors(MAX_TOKENS, torch.bfloat16, device).tensors
    landing = {key: torch.empty_like(value) for key, value in persistent.items()}
    static_input = torch.zeros(MAX_TOKENS, HIDDEN, dtype=torch.bfloat16, device=device)
    recorded = {n: _capture(patch, lm, rank, persistent, static_input, n) for n in GRAPH_BATCHES} if graphs else {}
    equal, different = 0, 0
    for step in range(ROUNDS):
        tokens = GRAPH_BATCHES[step % len(GRAPH_BATCHES)]
        fed = inputs(step, tokens, device)
        output = None
        if rank == 0:
            output = _run(patch, lm, recorded.get(tokens), static_input, None, fed, tokens)
        keys = agree_on_keys(rank, output)
        exchange(rank, output, landing, keys, tokens)
        if rank == 1:
            for key in persistent:
                persistent[key][:tokens].copy_(landing[key][:tokens])
            got = _run(patch, lm, recorded.get(tokens), static_input, persistent, fed, tokens)
            assert whole is not None
            want, _ = whole(fed, torch.zeros_like(fed))
            same = torch.equal(got.tensors["hidden_states"], want)
            equal, different = equal + same, different + (not same)
    return {"patched": patched, "graphs": graphs, "steps": ROUNDS, "bit_equal": equal, "different": different}


def _slice(tensors: dict[str, torch.Tensor], tokens: int) -> IntermediateTensors:
    return IntermediateTensors({key: value[:tokens] for key, value in tensors.items()})


def _capture(patch: Any, lm: Any, rank: int, persistent: dict[str, torch.Tensor], fed: torch.Tensor, n: int) -> Any:
    received = _slice(persistent, n) if rank == 1 else None
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        forward_stage(patch, lm, received, fed[:n])
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        output = forward_stage(patch, lm, received, fed[:n])
    return graph, output


def _run(
    patch: Any,
    lm: Any,
    recorded: Any,
    static_input: torch.Tensor,
    persistent: dict[str, torch.Tensor] | None,
    fed: torch.Tensor,
    tokens: int,
) -> Any:
    if recorded is None:
        return forward_stage(patch, lm, _slice(persistent, tokens) if persistent else None, fed)
    graph, output = recorded
    static_input[:tokens].copy_(fed)
    graph.replay()
    return output


def time_boundary(rank: int, device: torch.device, tokens: int, rows: bool) -> float:
    """Microseconds for one transfer of a step's tensors over the boundary, both streams drained."""
    tensors = make_empty(tokens, torch.bfloat16, device).tensors
    if rows:
        tensors["topk_indices"] = torch.zeros(tokens, TOPK, dtype=torch.int32, device=device)
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    dist.barrier()
    torch.cuda.synchronize()
    start.record()
    repeats = 20
    for _ in range(repeats):
        exchange(rank, IntermediateTensors(tensors), tensors, list(tensors), tokens)
    end.record()
    torch.cuda.synchronize()
    return start.elapsed_time(end) * 1000 / repeats


def time_all(rank: int, device: torch.device) -> list[dict[str, float]]:
    """Pairs in turn, without and with the rows; medians and the added time per token."""
    for rows in (False, True):
        time_boundary(rank, device, 64, rows)
    table = []
    for tokens in TIMED_BATCHES:
        pairs = [
            (time_boundary(rank, device, tokens, False), time_boundary(rank, device, tokens, True)) for _ in range(15)
        ]
        without, with_rows = (statistics.median(column) for column in zip(*pairs, strict=True))
        added = statistics.median(b - a for a, b in pairs)
        table.append(
            {
                "tokens": tokens,
                "without_us": round(without, 2),
                "with_us": round(with_rows, 2),
                "added_us": round(added, 2),
                "added_ns_per_token": round(added * 1000 / tokens, 1),
            }
        )
    return table


def main() -> None:
    rank = int(os.environ["RANK"])
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    dist.init_process_group("nccl")
    cases = [(True, False), (True, True), (False, False), (False, True)]
    with torch.inference_mode():
        checks = [check_correctness(rank, device, patched, graphs) for patched, graphs in cases]
        timing = time_all(rank, device)
    if rank == 1:
        result = {
            "gpu": torch.cuda.get_device_name(),
            "gpus": torch.cuda.device_count(),
            "torch": torch.__version__,
            "nccl": ".".join(map(str, torch.cuda.nccl.version())),
            "python": platform.python_version(),
            "hidden_size": HIDDEN,
            "index_topk": TOPK,
            "split": list(SPLIT),
            "correctness": checks,
            "boundary": timing,
        }
        Path(sys.argv[1]).write_text(json.dumps(result, indent=1) + "\n")
        print(json.dumps(result, indent=1))
    dist.barrier()
    dist.destroy_process_group()
    held = all(check["different"] == 0 for check in checks if check["patched"])
    shown = all(check["different"] > 0 for check in checks if not check["patched"])
    if rank == 1 and not (held and shown):
        sys.exit("the patched runs must all be bit-equal, and the unpatched ones must show the fault")


if __name__ == "__main__":
    main()
