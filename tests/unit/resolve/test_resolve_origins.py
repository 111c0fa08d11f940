"""Every token, pair and mount knows who set it."""

from __future__ import annotations

from pathlib import Path

import pytest

from shardwright.campaign.request import Request
from tests.unit.helpers import BASE, GLM, LOCAL, ROOT, request_for


def origin_of(request: Request, flag: str) -> str:
    return next(str(argument.origin) for argument in request.deployment.engine_args if argument.tokens[0] == flag)


def pair_origin(request: Request, name: str) -> str:
    return next(str(pair.origin) for pair in request.deployment.env if pair.name == name)


def test_an_argument_is_not_credited_to_the_wrong_file_or_rule(tmp_path: Path):
    text = GLM + "parallel: {tensor: 2, pipeline: 2, layer_partition: [42, 36]}\n"
    request = request_for(tmp_path, text, {"KV_CACHE_DTYPE": "bfloat16"}, ("serve.seed=7",))
    assert origin_of(request, "--tensor-parallel-size") == "configs/layouts/demo.yaml:4"
    assert origin_of(request, "--served-model-name").startswith("configs/layouts/base/glm53-a100.yaml:")
    assert origin_of(request, "--kv-cache-dtype") == "env KV_CACHE_DTYPE"
    assert origin_of(request, "--seed") == "--set serve.seed"
    assert origin_of(request, "--disable-custom-all-reduce") == "rule tp2-custom-all-reduce-off"
    assert origin_of(request, "--speculative-config") == "rule spec-method-auto"
    assert pair_origin(request, "NCCL_DEBUG").startswith("configs/layouts/base/a100-80g-x8.yaml:")
    assert pair_origin(request, "VLLM_PP_LAYER_PARTITION") == "configs/layouts/demo.yaml:4"
    assert pair_origin(request, "VLLM_USE_V2_MODEL_RUNNER") == "rule pp-runner-v2"
    assert pair_origin(request, "VLLM_ENGINE_READY_TIMEOUT_S") == "rule engine-ready-timeout"


def test_an_overlay_mount_names_its_patches_and_lies_below_the_project(tmp_path: Path):
    request = request_for(tmp_path, GLM + "parallel: {pipeline: 2}\npatches: [pp-index-transport]\n")
    overlays = [mount for mount in request.deployment.mounts if mount.purpose == "overlay"]
    assert {str(mount.origin) for mount in overlays} == {"patch pp-index-transport"}
    assert all(mount.readonly for mount in overlays)
    assert all(mount.source.startswith(f"{tmp_path}/overlays/0.30.0-") for mount in overlays)
    assert [mount.target for mount in overlays if mount.adds] == [
        "/usr/local/lib/python3.12/dist-packages/vllm/_overlay"
    ]


def test_overlays_go_where_the_image_keeps_the_package(tmp_path: Path):
    text = GLM + "engine: {package_root: /opt/venv/vllm}\nparallel: {pipeline: 2}\npatches: [pp-index-transport]\n"
    overlays = [mount for mount in request_for(tmp_path, text).deployment.mounts if mount.purpose == "overlay"]
    assert all(mount.target.startswith("/opt/venv/vllm/") for mount in overlays)


@pytest.mark.parametrize("image", ["engine:1", "engine:2"])
def test_overlays_of_two_images_do_not_share_a_folder(tmp_path: Path, image: str):
    text = GLM + "parallel: {pipeline: 2}\npatches: [pp-index-transport]\n"
    first = request_for(tmp_path, text, {"IMAGE": "engine:0"}).deployment.overlay
    second = request_for(tmp_path, text, {"IMAGE": image}).deployment.overlay
    assert first is not None
    assert second is not None
    assert first.directory != second.directory


@pytest.mark.parametrize(
    ("path", "mount", "seen", "source"),
    [
        ("/models/m", "null", "/models/m", "/models/m"),
        ("/models/m", "/weights", "/weights", "/models/m"),
        ("weights/m", "null", "/models/m", "{root}/weights/m"),
        ("./m", "null", "/models/m", "{root}/m"),
        ("org/model", "null", "org/model", None),
    ],
)
def test_the_model_is_mounted_where_the_engine_looks_for_it(
    tmp_path: Path, path: str, mount: str, seen: str, source: str | None
):
    (tmp_path / "weights" / "m").mkdir(parents=True)
    text = BASE.replace("{path: org/model}", f"{{path: {path}, mount: {mount}}}")
    deployment = request_for(tmp_path, text).deployment
    assert deployment.engine_args[0].tokens == (seen,)
    expected = [] if source is None else [(source.format(root=tmp_path), seen, True)]
    assert [(m.source, m.target, m.readonly) for m in deployment.mounts] == expected


def test_the_local_engine_is_given_the_host_path_and_no_mounts(tmp_path: Path):
    deployment = request_for(tmp_path, LOCAL).deployment
    assert deployment.mounts == ()
    assert deployment.engine_args[0].tokens[0].startswith("/")
    assert deployment.overlay is not None
    pairs = {pair.name: pair.value for pair in deployment.env}
    assert pairs["PYTHONPATH"] == deployment.overlay.farm
    assert deployment.engine.python == f"{tmp_path}/.venv/bin/python"


def test_a_revision_is_passed_on_right_behind_the_model(tmp_path: Path):
    request = request_for(tmp_path, BASE.replace("org/model}", "org/model, revision: 0123}"))
    assert [argument.tokens for argument in request.deployment.engine_args[:2]] == [
        ("org/model",),
        ("--revision", "0123"),
    ]


def test_a_shipped_model_file_is_found_from_any_project(tmp_path: Path):
    assert request_for(tmp_path, GLM).facts.model is not None
    assert (ROOT / "configs/models/glm-5.3-w4a16.yaml").is_file()


@pytest.mark.parametrize("name", ["true", "[]", "a"])
def test_the_served_name_is_always_a_name(tmp_path: Path, name: str):
    served = request_for(tmp_path, BASE + f"serve: {{served_model_name: {name}}}\n").deployment.served_model_name
    assert served == ("a" if name == "a" else "org/model")


def test_a_python_path_of_the_layout_stays_behind_the_patched_package(tmp_path: Path) -> None:
    text = (
        "schema: shardwright/v1\nname: demo\nruntime: local\nmodel: {path: configs/models/needle-tiny}\n"
        "engine: {vllm: '0.30.0', platform: cpu, python: .venv/bin/python}\npatches: [pp-cpu-eager]\n"
        "env: {PYTHONPATH: /opt/plugins}\n"
    )
    values = [pair.value for pair in request_for(tmp_path, text).deployment.env if pair.name == "PYTHONPATH"]
    assert len(values) == 1
    assert values[0].endswith(".farm:/opt/plugins")
