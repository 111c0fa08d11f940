"""Weights that are none, dtypes that a model does not take, and KV connectors without a role."""

from __future__ import annotations

from typing import Literal

import pytest
from deployed import deployed, said

from shardwright.facts.facts import Facts
from shardwright.facts.shape import ModelShape
from shardwright.gates.kv_transfer import check_kv_transfer
from shardwright.gates.model_settings import check_model_settings


@pytest.mark.parametrize(("status", "verdict"), [("ready", "reject"), ("testing", "warn")])
def test_random_weights_are_never_served_unsaid(status: Literal["ready", "testing"], verdict: str) -> None:
    asked = deployed("--load-format dummy", status=status)
    assert said(check_model_settings, asked) == [f"model-settings {verdict}: load_format dummy reads no weights"]
    assert said(check_model_settings, deployed("--load-format auto", status=status)) == []
    assert said(check_model_settings, deployed(status=status)) == []


@pytest.mark.parametrize(
    ("dtype", "model_type", "version", "refused"),
    [
        ("half", "gemma3", "0.30.0", True),
        ("float16", "gemma3_text", "0.28.0", True),
        ("half", "gemma2", "0.33.0", True),
        ("half", "glm4", "0.30.0", True),
        ("bfloat16", "gemma3", "0.30.0", False),
        ("half", "llama", "0.30.0", False),
        ("half", "gemma3", "0.34.0", False),
        ("half", "", "0.30.0", False),
    ],
)
def test_models_that_overflow_in_float16(dtype: str, model_type: str, version: str, refused: bool) -> None:
    facts = Facts(shape=ModelShape("c", model_type=model_type))
    found = said(check_model_settings, deployed(f"--dtype {dtype}", engine={"vllm": version}), facts)
    text = f"model-settings reject: {model_type} does not compute in float16, and dtype is {dtype}"
    assert found == ([text] if refused else [])
    assert said(check_model_settings, deployed(f"--dtype {dtype}")) == []
    assert said(check_model_settings, deployed(), facts) == []


@pytest.mark.parametrize(
    ("config", "found"),
    [
        ('{"kv_connector":"NixlConnector","kv_role":"kv_both"}', None),
        ('{"kv_connector":"NixlConnector","kv_role":"kv_producer"}', None),
        ('{"kv_connector":"NixlConnector","kv_role":"kv_consumer"}', None),
        ('{"kv_connector":"NixlConnector"}', "kv_transfer_config names a connector without kv_role"),
        ('{"kv_connector":"NixlConnector","kv_role":"both"}', "there is no kv_role 'both'"),
        ('{"kv_role":"both"}', "there is no kv_role 'both'"),
        ("{}", None),
    ],
)
def test_a_connector_has_a_role_that_there_is(config: str, found: str | None) -> None:
    said_of = said(check_kv_transfer, deployed(f"--kv-transfer-config {config}"))
    assert said_of == ([f"kv-transfer reject: {found}"] if found else [])
    assert said(check_kv_transfer, deployed()) == []
