"""The layouts that ship: each decodes, resolves and renders, and means what its comments say."""

from __future__ import annotations

import shlex
from collections.abc import Callable

import pytest

from shardwright.campaign.request import prepare
from shardwright.connect.project import Project
from shardwright.render.command import render
from shardwright.render.shell import shell_lines
from tests.unit.helpers import ROOT, SHIPPED, Result, argv, env

Cli = Callable[..., Result]
HERE = Project(ROOT, (ROOT,))
REFUSED: set[str] = set()


@pytest.mark.parametrize("name", SHIPPED)
def test_a_shipped_layout_decodes_and_renders(name: str):
    request = prepare(name, {}, project=HERE)
    assert request.deployment.name == name, "the file and the layout's own name agree"
    assert shlex.split(shell_lines(render(request.deployment)))


@pytest.mark.parametrize("name", SHIPPED)
def test_a_shipped_layout_is_refused_only_where_it_should_be(cli: Cli, name: str):
    assert cli("cmd", name).code == (1 if name in REFUSED else 0)


@pytest.mark.parametrize("name", SHIPPED)
def test_a_shipped_layout_that_is_not_ready_says_what_is_missing(name: str):
    layout = prepare(name, {}, project=HERE).layout
    assert (layout.status == "ready") or layout.missing_proof


def test_the_default_is_the_layout_of_the_field_report():
    request = prepare(None, {}, project=HERE)
    words = argv(request)
    assert request.deployment.name == "glm53-tp4pp2"
    assert env(request)["VLLM_PP_LAYER_PARTITION"] == "41,37"
    expected = {
        "--tensor-parallel-size": "4",
        "--pipeline-parallel-size": "2",
        "--max-model-len": "524288",
        "--kv-cache-dtype": "fp8_ds_mla",
        "--gpu-memory-utilization": "0.95",
        "--speculative-config": '{"method":"mtp","num_speculative_tokens":3}',
    }
    assert {flag: words[words.index(flag) + 1] for flag in expected} == expected


def test_the_million_token_layout_has_no_orphans_and_needs_no_patch():
    request = prepare("glm53-tp2pp4", {}, project=HERE)
    assert request.assessment.plan.partition == (22, 20, 20, 16)
    assert (request.assessment.plan.orphans, request.deployment.patches) == ((), ())
    assert "--disable-custom-all-reduce" in argv(request)


@pytest.mark.parametrize("name", [name for name in SHIPPED if name.startswith("glm53")])
def test_a_shipped_glm_layout_on_a_stock_image_is_refused_with_the_reason(cli: Cli, name: str):
    result = cli("cmd", name, IMAGE="vllm/vllm-openai:v0.30.0")
    assert result.code == 1
    assert "REFUSED attention-backend" in result.err
    assert "compute capability 8.0" in result.err


@pytest.mark.parametrize("name", [name for name in SHIPPED if name.startswith("tiny")])
def test_the_demo_publishes_on_the_loopback_address_only(name: str):
    deployment = prepare(name, {}, project=HERE).deployment
    assert (deployment.container.publish_host, deployment.runtime) == ("127.0.0.1", "local")
