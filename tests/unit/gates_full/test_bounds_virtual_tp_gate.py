"""Borders of odd tensor parallelism's gate: the folder, the cards, the tactics, the ladder of proof."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from deployed import deployed, fixes, mount, said, shipped
from msgspec.structs import replace

from shardwright.facts.facts import Facts
from shardwright.facts.host import Gpu
from shardwright.facts.shape import ModelShape
from shardwright.facts.virtual_tp import VirtualTpFacts
from shardwright.facts.vtp_ladder import RUNGS, Evidence, subject_of
from shardwright.gates.virtual_tp import check_virtual_tp, hardware_of
from shardwright.plan.virtual_sizes import PADDED_KEYS
from shardwright.resolve.deployment import Deployment, Speculation
from tests.unit.vtp.vtp_samples import FLASH, plan, table

PATCHES = shipped("virtual-tp")
GIB = 1 << 30
MADE = plan(FLASH, 3)
AXES = ("attention_heads", "output_groups", "routed_intermediate")
SIDECAR: dict[str, Any] = {
    **FLASH,
    **{PADDED_KEYS[axis]: MADE.axes[axis].virtual for axis in AXES},
    "virtual_tp": {**MADE.sidecar_entry(), "checkpoint": "/models/flash"},
}
FLAGS = ("--attention-backend FLASHINFER_MLA_SPARSE_DSV4", "--moe-backend flashinfer_cutlass")
QUIET = "--no-enable-flashinfer-autotune"


def padded(config: Mapping[str, Any] | None = None, **changes: Any) -> Facts:
    found = VirtualTpFacts("config.json", SIDECAR if config is None else config, table())
    return Facts(virtual_tp=replace(found, **changes))


def served(*flags: str, tensor: int = 3, capability: str = "12.0", memory: float = 94.5, **changes: Any) -> Deployment:
    words = flags or FLAGS
    given: dict[str, Any] = {
        "patches": PATCHES,
        "mounts": (mount("/models/flash", "/models/flash"),),
        "hardware": (4, capability, memory),
        **changes,
    }
    return deployed(*words, QUIET, tensor=tensor, **given)


def spoken(deployment: Deployment, facts: Facts | None = None) -> list[str]:
    """What the gate says but for what runs on the cards."""
    texts = said(check_virtual_tp, deployment, facts or padded())
    return [text.removeprefix("virtual-tp ") for text in texts if "activations" not in text]


def test_a_padded_folder_with_its_patch_is_accepted() -> None:
    assert spoken(served()) == []
    assert len(said(check_virtual_tp, served(), padded())) == 1


def test_without_a_config_the_patch_makes_it_unknown() -> None:
    assert spoken(served(), Facts())[0].startswith("unknown: whether the model folder carries a plan for this TP")
    assert spoken(served(patches=shipped("pp-cpu-eager")), Facts()) == []


@pytest.mark.parametrize(
    ("shape", "needed"),
    [
        (ModelShape("c", heads=64), True),
        (ModelShape("c", vocabulary=64), True),
        (ModelShape("c", moe_intermediate=64), True),
        (ModelShape("c", heads=65), True),
        (ModelShape("c", heads=63, vocabulary=66, moe_intermediate=64), True),
        (ModelShape("c", heads=63, vocabulary=66, moe_intermediate=69), False),
        (ModelShape("c"), False),
        (None, False),
    ],
)
def test_the_checkpoint_itself_is_refused_where_its_sizes_do_not_divide(shape: ModelShape | None, needed: bool) -> None:
    facts = replace(padded(FLASH), shape=shape)
    (text,) = spoken(served(), facts)
    assert text.startswith(
        "reject: TP=3 needs a padded model folder" if needed else "info: the patch virtual-tp does noth"
    )
    assert spoken(served(patches=()), facts) == []


def test_a_padded_folder_without_the_patch_is_refused() -> None:
    (text,) = spoken(served(patches=()))
    assert text == "reject: config.json is padded for TP=3, but the layout does not name the patch virtual-tp"


def test_a_folder_of_another_size_or_vocabulary_is_refused() -> None:
    assert spoken(served(tensor=2))[0] == "reject: the model folder was written for TP=3, but the layout says TP=2"
    texts = spoken(served(), padded({**SIDECAR, "vocab_size": 129408}))
    assert texts[0] == "reject: vocab_size was padded to 129408, the checkpoint has 129280"
    for odd in ("x", [], None):
        entry = {**SIDECAR["virtual_tp"], "axes": {**SIDECAR["virtual_tp"]["axes"], "vocabulary": odd}}
        texts = spoken(served(), padded({**SIDECAR, "virtual_tp": entry}))
        assert not any("vocab_size was" in text for text in texts)


@pytest.mark.parametrize(
    ("source", "target", "reachable"),
    [
        ("/models/flash", "/models/flash", True),
        ("/models", "/models", True),
        ("/models/", "/models/", True),
        ("/models/fla", "/models/fla", False),
        ("/models", "/weights", False),
        ("/other", "/other", False),
    ],
)
def test_the_links_of_the_folder_lead_to_the_same_place_in_the_container(
    source: str, target: str, reachable: bool
) -> None:
    text = "reject: the links of the model folder lead to /models/flash, which the container does not have at that path"
    asked = served(mounts=(mount(target, source),))
    assert spoken(asked) == ([] if reachable else [text])
    assert spoken(replace(asked, runtime="local")) == []
    silent = {**SIDECAR, "virtual_tp": MADE.sidecar_entry()}
    assert spoken(asked, padded(silent)) == []


@pytest.mark.parametrize(
    "flag", ["--data-parallel-size", "--prefill-context-parallel-size", "--decode-context-parallel-size"]
)
def test_padding_is_for_tensor_parallelism_alone(flag: str) -> None:
    assert spoken(served(*FLAGS, f"{flag} 2")) == [f"reject: {flag} 2 is set"]
    assert spoken(served(*FLAGS, f"{flag} 1")) == []
    assert spoken(served(*FLAGS, "--enable-expert-parallel")) == ["reject: expert parallelism is on"]


def test_both_backends_are_named_and_known_on_these_cards() -> None:
    start = "reject: deepseek_v4 with no attention backend + no MoE backend on compute capability 12.x"
    assert spoken(served("--seed 1"))[0].startswith(start)
    other = spoken(served(capability="10.0"))
    assert other[0].startswith("reject: deepseek_v4 with FLASHINFER_MLA_SPARSE_DSV4 + flashinfer_cutlass on compute")
    assert fixes(check_virtual_tp, served(capability="10.0"), padded()) == [
        "known: FLASHINFER_MLA_SPARSE_DSV4 + flashinfer_cutlass on 12.x; "
        "FLASHMLA_SPARSE_DSV4 + flashinfer_cutlass on 9.x"
    ]
    nameless = {key: value for key, value in SIDECAR.items() if key != "model_type"}
    assert spoken(served(), padded(nameless))[0].startswith("reject: this model with FLASHINFER")
    assert spoken(served(hardware=None))[0] == "unknown: the compute capability of the cards is not known"


def test_the_cards_of_the_host_come_first_each_kind_once() -> None:
    cards = tuple(Gpu("card", capability, 94.5) for capability in ("12.0", "12.1", "10.0", "8.0"))
    texts = spoken(served(), replace(padded(), gpus=cards))
    assert [text.split("capability ")[1][:4] for text in texts] == ["10.x", "8.x "]


def test_the_engine_on_a_cpu_has_backends_of_its_own() -> None:
    on_cpu = deployed(tensor=3, engine={"platform": "cpu"}, patches=PATCHES, runtime="local", hardware=(1, "0", 1.0))
    assert spoken(on_cpu) == []
    odd = replace(on_cpu, engine=replace(on_cpu.engine, vllm="0.20.0"))
    assert spoken(odd) == ["reject: no alignment is known for the attention backend cpu of vLLM 0.20.0"]
    # On a GPU a backend without a row was refused above, by its combination.
    unknown = served("--attention-backend FLASHINFER_MLA_SPARSE_DSV4", "--moe-backend none")
    assert [text[:40] for text in spoken(unknown)] == ["reject: deepseek_v4 with FLASHINFER_MLA_"]
    half = served("--attention-backend NONE", "--moe-backend flashinfer_cutlass")
    assert spoken(half)[1] == "reject: no alignment is known for the attention backend NONE of vLLM 0.30.0"


def test_a_plan_that_these_sizes_do_not_give_is_refused() -> None:
    entry = {**SIDECAR["virtual_tp"], "axes": {**SIDECAR["virtual_tp"]["axes"], "shared_intermediate": [2048, 2112]}}
    text = "reject: the plan in the model folder is not the one that these sizes and backends give"
    assert spoken(served(), padded({**SIDECAR, "virtual_tp": entry})) == [text]
    other_tp = spoken(served(), padded({**SIDECAR, "virtual_tp": {**entry, "tp_size": 5}}))
    assert text not in other_tp and len(other_tp) == 1


def test_a_fraction_of_a_scale_group_is_refused() -> None:
    small = {**SIDECAR, "o_lora_rank": 1000}
    texts = spoken(served(), padded(small))
    assert [text[:18] for text in texts] == ["reject: attn.wo_a.", "reject: attn.wo_b."]
    assert all("which is not whole" in text for text in texts)


MEMORY = MADE.memory


@pytest.mark.parametrize("drafts", [False, True])
def test_weights_with_the_kernels_padding_leave_room_to_the_byte(drafts: bool) -> None:
    needed = MEMORY.known + (MEMORY.draft if drafts else 0)
    speculation = Speculation("mtp" if drafts else "none", "auto", 1, served().speculation.origin)
    for share, size, fits in (
        (1.0, needed, False),
        (1.0, needed + 1, True),
        (0.5, 2 * needed, False),
        (0.5, 2 * needed + 2, True),
    ):
        words = (*FLAGS, f"--gpu-memory-utilization {share}")
        asked = served(*words, memory=size / GIB, speculation=speculation)
        assert (spoken(asked) == []) == fits
        cards = (Gpu("card", "12.0", 200.0), Gpu("card", "12.0", size / GIB))
        assert (spoken(replace(asked, hardware=None), replace(padded(), gpus=cards)) == []) == fits
    needs = f"reject: each rank needs {needed / GIB:.1f} GiB of weights with the kernel's padding, and may use"
    text = f"{needs} 0.9 x 10 = 9.0 GiB"
    assert spoken(served(memory=10.0, speculation=speculation)) == [text]
    assert spoken(served(*FLAGS, "--gpu-memory-utilization much", memory=1.0)) == []


@pytest.mark.parametrize(
    ("capability", "attention", "filtered", "found"),
    [
        ("9.0", "FLASHMLA_SPARSE_DSV4", True, None),
        ("9.0", "FLASHMLA_SPARSE_DSV4", False, "reject: {}is not there"),
        ("9.0", "FLASHMLA_SPARSE_DSV4", None, "reject: {}is not known"),
        ("12.0", "FLASHINFER_MLA_SPARSE_DSV4", True, None),
        ("12.0", "FLASHINFER_MLA_SPARSE_DSV4", False, "warn: {}is not there"),
        ("12.0", "FLASHINFER_MLA_SPARSE_DSV4", None, "warn: {}is not known"),
        ("12.1", "FLASHINFER_MLA_SPARSE_DSV4", True, "reject: {}is there"),
        ("12.1", "FLASHINFER_MLA_SPARSE_DSV4", False, "warn: {}is not there"),
        ("12.1", "FLASHINFER_MLA_SPARSE_DSV4", None, "warn: {}is not known"),
    ],
)
def test_tactics_that_read_past_the_scales(
    capability: str, attention: str, filtered: bool | None, found: str | None
) -> None:
    loud = (f"--attention-backend {attention}", "--moe-backend flashinfer_cutlass")
    given: dict[str, Any] = {"patches": PATCHES, "mounts": (mount("/models/flash", "/models/flash"),)}
    asked = deployed(*loud, tensor=3, hardware=(4, capability, 94.5), **given)
    facts = padded(tactic_filter=filtered)
    middle = (
        f"on {capability} the kernel width 768 is no multiple of 512, autotuning is on, and FlashInfer's filter of "
        "tactics by shape "
    )
    assert spoken(asked, facts) == ([found.format(middle)] if found else [])
    for off in (QUIET, '--kernel-config {"enable_flashinfer_autotune":false}'):
        assert spoken(deployed(*loud, off, tensor=3, hardware=(4, capability, 94.5), **given), facts) == []
    on = deployed(*loud, "--enable-flashinfer-autotune", tensor=3, hardware=(4, capability, 94.5), **given)
    assert len(spoken(on, facts)) == (found is not None)


def test_a_ready_layout_has_every_rung_green_but_the_speed() -> None:
    ready = served(status="ready")
    subject = subject_of(MADE.sidecar_entry(), PATCHES[0].digest, "0.30.0")
    here = hardware_of(ready)
    assert (here, hardware_of(deployed()), hardware_of(deployed(engine={"platform": "cpu"}))) == (
        "4 cards of 12.0",
        "cuda",
        "cpu",
    )
    kept = {rung.name: Evidence(rung.name, True, here, "", subject) for rung in RUNGS}

    def missing(deployment: Deployment, *without: str, facts: Facts | None = None) -> list[str]:
        evidence = tuple(item for name, item in kept.items() if name not in without)
        return spoken(
            deployment, replace(facts or padded(), virtual_tp=replace(padded().virtual_tp, evidence=evidence))
        )

    start = f"reject: status is ready, but these rungs are not green on {here}: "
    assert missing(ready) == missing(ready, "speed") == missing(ready, "speed", "mtp") == []
    drafting = replace(ready, speculation=Speculation("mtp", "auto", 1, ready.speculation.origin))
    assert missing(drafting, "speed", "mtp") == [f"{start}mtp (open)"]
    assert missing(ready, "parity", "graph-replay") == [f"{start}parity (open), graph-replay (open)"]
    kept["parity"] = replace(kept["parity"], passed=False)
    assert missing(ready) == [f"{start}parity (red)"]
    assert missing(served()) == []
    assert missing(replace(ready, patches=(*shipped("pp-cpu-eager"), *PATCHES))) == [f"{start}parity (red)"]


@pytest.mark.parametrize(("waived", "verdict"), [((), "reject"), (("idle-ranks",), "warn"), (("other",), "reject")])
def test_ranks_that_hold_padding_only_are_refused_unless_waived(waived: tuple[str, ...], verdict: str) -> None:
    made = plan(FLASH, 9)
    config = {
        **FLASH,
        **{PADDED_KEYS[axis]: made.axes[axis].virtual for axis in AXES},
        "virtual_tp": made.sidecar_entry(),
    }
    asked = served(tensor=9, waivers=waived)
    text = "TP=9 leaves no real attention head on rank 8 and no real expert row on rank 8"
    assert spoken(asked, padded(config)) == [f"{verdict}: {text}"]
    fix = "" if verdict == "warn" else "use a smaller TP, or allow: [idle-ranks]"
    assert fix in fixes(check_virtual_tp, asked, padded(config))


def test_what_the_experts_run_with_is_said_and_where_it_is_not_what_one_expects() -> None:
    (blackwell,) = said(check_virtual_tp, served(), padded())
    assert blackwell.endswith("MXFP4 experts with MXFP8 activations, where BF16 may be expected")
    rows = [row for row in table().capabilities if row.activations == "BF16"]
    for row in rows:
        words = (f"--attention-backend {row.attention}", f"--moe-backend {row.moe}")
        texts = said(check_virtual_tp, served(*words, capability=row.compute_capability), padded())
        assert any(text.endswith("MXFP4 experts with BF16 activations") for text in texts), texts
    assert rows
