"""An artefact that was compiled without the patches is never taken for one with them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from shardwright.campaign.request import Request
from shardwright.errors import UsageError
from tests.unit.helpers import GLM, request_for

TRANSPORT = "patches: [pp-index-transport]\n"
EAGER = "patches: [pp-cpu-eager]\nengine: {platform: cpu}\n"


def values(request: Request) -> tuple[str | None, dict[str, object] | None]:
    roots = [pair.value for pair in request.deployment.env if pair.name == "VLLM_CACHE_ROOT"]
    given = [item.tokens[1] for item in request.deployment.engine_args if item.tokens[0] == "--additional-config"]
    assert len(roots) <= 1 and len(given) <= 1
    return (roots[0] if roots else None), (json.loads(given[0]) if given else None)


def test_a_patch_that_shapes_the_graph_keys_both_caches(tmp_path: Path) -> None:
    request = request_for(tmp_path, GLM + TRANSPORT)
    root, config = values(request)
    overlay = request.deployment.overlay
    assert overlay is not None and overlay.key == "-".join(Path(overlay.directory).parts[-2:])
    assert root == f"~/.cache/vllm/{overlay.key}"
    assert config == {"shardwright_overlay": overlay.key}
    (pair,) = [pair for pair in request.deployment.env if pair.name == "VLLM_CACHE_ROOT"]
    assert str(pair.origin) == "rule overlay-compile-cache"


def test_a_patch_outside_of_the_graph_leaves_the_caches_alone(tmp_path: Path) -> None:
    assert values(request_for(tmp_path, GLM + EAGER)) == (None, None)
    assert values(request_for(tmp_path, GLM + "patches: []\n")) == (None, None)


def test_what_the_layout_says_itself_is_kept(tmp_path: Path) -> None:
    own = "env: {VLLM_CACHE_ROOT: /cache}\nserve: {additional_config: {mine: 1}}\n"
    root, config = values(request_for(tmp_path, GLM + TRANSPORT + own))
    assert root == "/cache" and config is not None
    assert config["mine"] == 1 and "shardwright_overlay" in config


def test_an_additional_config_that_is_no_map_is_one_clear_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="additional_config: expected a map"):
        request_for(tmp_path, GLM + TRANSPORT + "serve: {additional_config: [1]}\n")


RECOMPUTE = "patches: [pp-index-recompute]\n"


def loader_config(request: Request) -> dict[str, object] | None:
    flag = "--model-loader-extra-config"
    given = [item.tokens[1] for item in request.deployment.engine_args if item.tokens[0] == flag]
    return json.loads(given[0]) if given else None


def test_recompute_is_never_run_without_weight_tracking(tmp_path: Path) -> None:
    assert loader_config(request_for(tmp_path / "a", GLM + RECOMPUTE)) == {"enable_weights_track": True}
    own = "serve: {model_loader_extra_config: {mine: 1}}\n"
    assert loader_config(request_for(tmp_path / "b", GLM + RECOMPUTE + own)) == {
        "mine": 1,
        "enable_weights_track": True,
    }
    assert loader_config(request_for(tmp_path / "c", GLM + TRANSPORT)) is None


def test_another_patch_or_engine_is_another_key(tmp_path: Path) -> None:
    keys = {
        values(request_for(tmp_path / str(index), GLM + text))[0]
        for index, text in enumerate(
            (TRANSPORT, "patches: [pp-index-recompute]\n", TRANSPORT + "engine: {image: other}\n")
        )
    }
    assert len(keys) == 3
