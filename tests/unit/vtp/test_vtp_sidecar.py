"""`deploy vtp sidecar`: a folder of a few kilobytes that target and draft read, refused where it would mislead."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.unit.helpers import Result, write_layout
from tests.unit.vtp.vtp_samples import small_checkpoint


@pytest.fixture
def made(cli: Callable[..., Result], tmp_path: Path) -> Path:
    small_checkpoint(tmp_path / "model")
    result = cli("vtp", "sidecar", str(tmp_path / "model"), "--tp", "3", "--out", str(tmp_path / "tp3"))
    assert result.code == 0, result.err
    return tmp_path / "tp3"


def edit(folder: Path, **changes: object) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, **changes}))


def test_sizes_are_padded_and_the_vocabulary_is_not(made: Path):
    config = json.loads((made / "config.json").read_text())
    assert (config["num_attention_heads"], config["o_groups"], config["moe_intermediate_size"]) == (18, 9, 96)
    assert config["vocab_size"] == 128
    assert config["virtual_tp"]["tp_size"] == 3
    assert config["virtual_tp"]["axes"]["routed_intermediate"] == [64, 96]
    assert config["architectures"] == ["DeepseekV4ForCausalLM"]


def test_no_weight_is_copied(made: Path):
    assert (made / "model.safetensors").is_symlink() and (made / "tokenizer.json").is_symlink()
    assert (made / "model.safetensors").resolve() == made.parent / "model" / "model.safetensors"
    assert sum(item.lstat().st_size for item in made.iterdir()) < 8192


def test_writing_it_again_gives_the_same(made: Path, cli: Callable[..., Result]):
    before = (made / "config.json").read_bytes()
    assert cli("vtp", "sidecar", str(made.parent / "model"), "--tp", "3", "--out", str(made)).code == 0
    assert (made / "config.json").read_bytes() == before


def test_a_good_one_passes_the_check(made: Path, cli: Callable[..., Result]):
    assert cli("vtp", "sidecar", str(made), "--check", "--tp", "3").code == 0


def test_the_wrong_tp_is_refused(made: Path, cli: Callable[..., Result]):
    result = cli("vtp", "sidecar", str(made), "--check", "--tp", "2")
    assert result.code == 1
    assert "written for TP=3, not for TP=2" in result.err


def test_the_folder_of_a_layout_is_checked_for_the_layouts_tp(made: Path, cli: Callable[..., Result], tmp_path: Path):
    text = f"schema: shardwright/v1\nname: demo\nmodel: {{path: {made}}}\nengine: {{image: e, vllm: '0.30.0'}}\n"
    write_layout(tmp_path, text + "parallel: {tensor: 3}\nserve: {moe_backend: emulation}\n")
    check = ("vtp", "sidecar", "demo", "--check")
    assert cli(*check, DEPLOY_PROJECT=str(tmp_path)).code == 0
    refused = cli(*check, DEPLOY_PROJECT=str(tmp_path), TP_SIZE="2")
    assert refused.code == 1 and "written for TP=3, not for TP=2" in refused.err


def test_a_model_folder_that_is_elsewhere_cannot_be_checked(cli: Callable[..., Result]):
    result = cli("vtp", "sidecar", "dsv4flash-tp3-lucifer", "--check")
    assert result.code == 64
    assert "is not on this host" in result.err


def test_a_moved_checkpoint_is_refused(made: Path, cli: Callable[..., Result]):
    (made.parent / "model").rename(made.parent / "elsewhere")
    result = cli("vtp", "sidecar", str(made), "--check")
    assert result.code == 1
    assert "the checkpoint is not at" in result.err


def test_another_checkpoint_under_the_same_path_is_refused(made: Path, cli: Callable[..., Result]):
    edit(made.parent / "model", hidden_size=16)
    assert "is not the one that it was made from" in cli("vtp", "sidecar", str(made), "--check").err


def test_a_padded_vocabulary_is_refused(made: Path, cli: Callable[..., Result]):
    edit(made, vocab_size=192)
    result = cli("vtp", "sidecar", str(made), "--check")
    assert result.code == 1
    assert "vocab_size is 192, not the checkpoint's 128" in result.err


def test_sizes_that_are_not_the_plans_are_refused(made: Path, cli: Callable[..., Result]):
    edit(made, num_attention_heads=16)
    assert "num_attention_heads is 16, but its plan pads to 18" in cli("vtp", "sidecar", str(made), "--check").err


def test_a_copied_weight_and_a_foreign_link_are_refused(made: Path, cli: Callable[..., Result]):
    (made / "tokenizer.json").unlink()
    (made / "tokenizer.json").write_text("{}")
    (made / "model.safetensors").unlink()
    (made / "model.safetensors").symlink_to(made / "tokenizer.json")
    err = cli("vtp", "sidecar", str(made), "--check").err
    assert "tokenizer.json is a copy" in err
    assert "model.safetensors leads to" in err


def test_a_new_file_of_the_checkpoint_is_missed(made: Path, cli: Callable[..., Result]):
    (made.parent / "model" / "generation_config.json").write_text("{}")
    assert "no link to generation_config.json" in cli("vtp", "sidecar", str(made), "--check").err


def test_a_folder_of_something_else_is_left_alone(made: Path, cli: Callable[..., Result], tmp_path: Path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes").write_text("keep")
    result = cli("vtp", "sidecar", str(tmp_path / "model"), "--tp", "3", "--out", str(tmp_path / "mine"))
    assert result.code == 1
    assert (tmp_path / "mine" / "notes").read_text() == "keep"


def test_a_sidecar_for_another_tp_is_not_overwritten(made: Path, cli: Callable[..., Result]):
    result = cli("vtp", "sidecar", str(made.parent / "model"), "--tp", "5", "--out", str(made))
    assert result.code == 1
    assert "is a sidecar for TP=3, not for TP=5" in result.err


def test_a_sidecar_of_a_sidecar_is_refused(made: Path, cli: Callable[..., Result], tmp_path: Path):
    result = cli("vtp", "sidecar", str(made), "--tp", "3", "--out", str(tmp_path / "again"))
    assert result.code == 1
    assert "is a sidecar itself" in result.err
    assert not (tmp_path / "again").exists()


def test_the_plan_of_a_sidecar_is_the_plan_of_its_checkpoint(made: Path, cli: Callable[..., Result]):
    one = cli("vtp", "plan", str(made), "--tp", "3", "--json").data
    assert one == cli("vtp", "plan", str(made.parent / "model"), "--tp", "3", "--json").data


def test_a_folder_that_is_no_sidecar_is_said_to_be_none(cli: Callable[..., Result], tmp_path: Path):
    folder = small_checkpoint(tmp_path / "model")
    assert "is not a sidecar" in cli("vtp", "sidecar", str(folder), "--check").err
