"""`extends`: what the child says wins, what it does not say stays, and the origin follows the value."""

from __future__ import annotations

from pathlib import Path

import pytest

from shardwright.errors import UsageError
from tests.unit.helpers import BASE, argv, env, project_at, request_for, write_layout

PARENT = """\
schema: shardwright/v1
model: {path: org/model}
engine: {image: "engine:1", vllm: "0.30.0"}
serve:
  seed: 1
  max_model_len: 1000
env:
  A: parent
  B: parent
patches: []
allow: [trust-remote-code]
"""


def test_a_child_changes_only_what_it_says(tmp_path: Path):
    write_layout(tmp_path, PARENT, "base/parent")
    request = request_for(
        tmp_path, "name: demo\nextends: base/parent.yaml\nserve: {seed: 2}\nenv: {A: child}\nallow: []\n"
    )
    words = argv(request)
    assert words[words.index("--seed") + 1] == "2"
    assert words[words.index("--max-model-len") + 1] == "1000"
    assert env(request)["A"] == "child"
    assert env(request)["B"] == "parent"
    assert request.layout.allow == (), "a list is replaced, not joined"


def test_null_in_a_child_unsets_what_the_parent_set(tmp_path: Path):
    write_layout(tmp_path, PARENT, "base/parent")
    request = request_for(tmp_path, "name: demo\nextends: base/parent.yaml\nserve: {seed: null}\nenv: {A: null}\n")
    assert "--seed" not in argv(request)
    assert "A" not in env(request)


def test_the_origin_is_that_of_the_file_that_won(tmp_path: Path):
    write_layout(tmp_path, PARENT, "base/parent")
    layout = request_for(tmp_path, "name: demo\nextends: base/parent.yaml\nserve: {seed: 2}\n").layout
    assert str(layout.origin("serve", "seed")) == "configs/layouts/demo.yaml:3"
    assert str(layout.origin("serve", "max_model_len")) == "configs/layouts/base/parent.yaml:6"


def test_a_fault_in_the_parent_is_reported_there(tmp_path: Path):
    write_layout(tmp_path, PARENT.replace("seed: 1", "--seed: 1"), "base/parent")
    with pytest.raises(UsageError, match=r"^configs/layouts/base/parent\.yaml:5: serve\.--seed: "):
        request_for(tmp_path, "name: demo\nextends: base/parent.yaml\n")


def test_a_chain_of_three_is_followed(tmp_path: Path):
    write_layout(tmp_path, PARENT, "base/a")
    write_layout(tmp_path, "extends: base/a.yaml\nserve: {seed: 5}\n", "base/b")
    words = argv(request_for(tmp_path, "name: demo\nextends: base/b.yaml\n"))
    assert words[words.index("--seed") + 1] == "5"


@pytest.mark.parametrize(
    ("extends", "reason"),
    [
        ("base/missing.yaml", "demo.yaml:2: extends: there is no configs/layouts/base/missing.yaml"),
        ("demo.yaml", "extends goes round in a circle: configs/layouts/demo.yaml -> configs/layouts/demo.yaml"),
        ("../../secret.yaml", "demo.yaml:2: extends: there is no"),
        ("[a]", "demo.yaml:2: extends: expected the path"),
        ("7", "demo.yaml:2: extends: expected the path"),
        ("a" * 5000, "demo.yaml:2: extends: there is no"),
    ],
)
def test_a_parent_that_cannot_be_read_is_named(tmp_path: Path, extends: str, reason: str):
    with pytest.raises(UsageError) as caught:
        request_for(tmp_path, f"name: demo\nextends: {extends}\n")
    assert reason in caught.value.what


def test_a_circle_over_two_files_ends(tmp_path: Path):
    write_layout(tmp_path, "extends: demo.yaml\n", "other")
    with pytest.raises(UsageError, match=r"circle: .*demo.yaml -> .*other.yaml -> .*demo.yaml"):
        request_for(tmp_path, "name: demo\nextends: other.yaml\n")


def test_a_chain_without_end_ends(tmp_path: Path):
    for index in range(12):
        write_layout(tmp_path, f"extends: c{index + 1}.yaml\n", f"c{index}")
    with pytest.raises(UsageError, match="more than 8 files deep"):
        request_for(tmp_path, "name: demo\nextends: c0.yaml\n")


def test_a_projects_own_file_hides_the_shipped_one(tmp_path: Path):
    write_layout(tmp_path, PARENT, "base/tiny-cpu")
    request = request_for(tmp_path, "name: demo\nextends: base/tiny-cpu.yaml\n")
    assert request.deployment.runtime == "docker"
    assert project_at(tmp_path).find("configs/layouts/base/glm53-a100.yaml") is not None, "the others are still there"


def test_a_layout_that_is_no_map_is_refused(tmp_path: Path):
    with pytest.raises(UsageError, match=r"demo\.yaml:1: a layout is a map of keys"):
        request_for(tmp_path, "- a\n- b\n")


def test_a_layout_without_extends_stands_alone(tmp_path: Path):
    assert request_for(tmp_path, BASE).layout.status == "testing"
