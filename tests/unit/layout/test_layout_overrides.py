"""Overrides of the environment and of `--set`: each acts where it should, and says so."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from shardwright.errors import UsageError
from shardwright.layout.overrides import ENV_RULES
from tests.unit.helpers import BASE, GLM, ROOT, Result, argv, env, request_for, write_layout

Cli = Callable[..., Result]
DIGEST = "sha256:" + "a" * 64

ACTING = {
    "TP_SIZE": ("8", "parallel.tensor = 8 (was 4)"),
    "PP_SIZE": ("1", "parallel.pipeline = 1 (was 2)"),
    "PP_LAYER_PARTITION": ("42,36", "parallel.layer_partition = 42,36 (was [41, 37])"),
    "MAX_MODEL_LEN": ("352000", "serve.max_model_len = 352000 (was 524288)"),
    "KV_CACHE_DTYPE": ("bfloat16", "serve.kv_cache_dtype = bfloat16 (was fp8_ds_mla)"),
    "SPEC_METHOD": ("none", "speculative.method = none (was auto)"),
    "DISABLE_CUSTOM_ALL_REDUCE": ("1", "serve.disable_custom_all_reduce = true (was unset)"),
    "ALLOW_UNVERIFIED_PP": ("1", 'allow = ["unverified-pp"] (was unset)'),
    "FORCE_V2_RUNNER": ("1", "v2_runner = 1 (was unset)"),
    "HF_OVERRIDES": ('{"index_topk_freq": 1}', 'serve.hf_overrides = {"index_topk_freq": 1} (was unset)'),
    "AGENT_PROBE_TRIALS": ("200", "probes.degen.trials = 200 (was unset)"),
    "GPU_MEMORY_UTILIZATION": ("0.90", "serve.gpu_memory_utilization = 0.9 (was 0.95)"),
    "IMAGE": ("other:2", "engine.image = other:2 (was vllm-sm80-sparse-mla:0.30.0)"),
    "PORT": ("9001", "container.publish = 127.0.0.1:9001:8000 (was 127.0.0.1:8000:8000)"),
}
DOCUMENTED = re.findall(r"`([A-Z][A-Z0-9_]+)`", (ROOT / "docs" / "layouts.md").read_text(encoding="utf-8"))


@pytest.mark.parametrize("variable", ACTING)
def test_an_override_does_not_act_in_silence(cli: Cli, variable: str):
    value, line = ACTING[variable]
    result = cli("cmd", "glm53-tp4pp2", **{variable: value})
    assert f"override env {variable}: {line}" in result.err
    assert result.err.count("override ") == 1


@pytest.mark.parametrize(
    "variable",
    # For the others empty has a meaning: no hand partition, auto, by rule.
    [name for name in ACTING if name not in ("PP_LAYER_PARTITION", "SPEC_METHOD", "FORCE_V2_RUNNER")],
)
def test_an_empty_variable_is_not_reported_as_an_override(cli: Cli, variable: str):
    result = cli("cmd", "glm53-tp4pp2", **{variable: ""})
    assert "override" not in result.err


def test_nothing_is_reported_where_nothing_is_overridden(cli: Cli):
    result = cli("cmd", "glm53-tp4pp2", UNRELATED="1", VLLM_PP_LAYER_PARTITION="1,2")
    assert (result.code, "override" in result.err) == (0, False)


def test_every_override_is_documented_and_tested():
    rules = {rule.variable for rule in ENV_RULES}
    assert set(ACTING) - rules == {"PORT", "ALLOW_UNVERIFIED_PP"}
    assert rules - set(ACTING) == {name for name in rules if name.startswith("DEPLOY_")}
    assert {*ACTING, *rules} <= set(DOCUMENTED)


def test_a_hatch_that_is_shut_does_not_open(tmp_path: Path):
    assert request_for(tmp_path, BASE, {"ALLOW_UNVERIFIED_PP": "0"}).layout.allow == ()


def test_a_hatch_keeps_the_waivers_of_the_layout(tmp_path: Path):
    request = request_for(tmp_path, BASE + "allow: [trust-remote-code]\n", {"ALLOW_UNVERIFIED_PP": "1"})
    assert request.layout.allow == ("trust-remote-code", "unverified-pp")
    again = request_for(tmp_path, BASE + "allow: [unverified-pp]\n", {"ALLOW_UNVERIFIED_PP": "1"})
    assert (again.layout.allow, again.overrides) == (("unverified-pp",), ())


def test_empty_spec_method_means_auto_and_not_none(tmp_path: Path):
    request = request_for(tmp_path, GLM + "speculative: {method: none}\n", {"SPEC_METHOD": ""})
    assert (request.deployment.speculation.asked, request.deployment.speculation.method) == ("auto", "mtp")


def test_empty_partition_override_drops_the_hand_partition(tmp_path: Path):
    text = GLM + "parallel: {tensor: 4, pipeline: 2, layer_partition: [41, 37]}\n"
    assert request_for(tmp_path, text, {"PP_LAYER_PARTITION": ""}).assessment.plan.partition == (39, 39)


def test_another_image_does_not_inherit_what_the_layout_said_of_its_own(tmp_path: Path):
    text = BASE.replace(
        'image: "engine:1"',
        f'image: "engine:1", digest: "{DIGEST}", package_root: /opt/vllm, provides: {{envs: [VLLM_X]}}',
    )
    request = request_for(tmp_path, text, {"IMAGE": "other:2"})
    engine = request.deployment.engine
    assert (engine.image, engine.digest, engine.package_root, engine.provides.envs) == ("other:2", None, None, ())
    assert "dropped engine.digest, engine.provides, engine.package_root" in str(request.overrides[0])


@pytest.mark.parametrize(
    ("environ", "sets"),
    [
        ({"IMAGE": "other:2", "DEPLOY_DIGEST": DIGEST}, ()),
        ({}, ("engine.image=other:2", f"engine.digest={DIGEST}")),
        ({}, (f"engine={{image: other:2, digest: '{DIGEST}'}}",)),
    ],
)
def test_the_digest_of_the_other_image_counts(tmp_path: Path, environ: dict[str, str], sets: tuple[str, ...]):
    text = BASE.replace('image: "engine:1"', 'image: "engine:1", digest: "sha256:old", provides: {envs: [VLLM_X]}')
    engine = request_for(tmp_path, text, environ, sets).deployment.engine
    assert (engine.image, engine.digest, engine.provides.envs) == ("other:2", DIGEST, ())


def test_the_same_image_keeps_its_digest(tmp_path: Path):
    text = BASE.replace('image: "engine:1"', f'image: "engine:1", digest: "{DIGEST}"')
    assert request_for(tmp_path, text, {"IMAGE": "engine:1"}).deployment.engine.digest == DIGEST


@pytest.mark.parametrize(
    ("publish", "expected"),
    [
        ("0.0.0.0:8000:8080", ("0.0.0.0", 9001, 8080)),
        ("8000:8080", ("127.0.0.1", 9001, 8080)),
        ("[::1]:8000:8080", ("[::1]", 9001, 8080)),
        ("8000", ("127.0.0.1", 9001, 8000)),
    ],
)
def test_port_moves_neither_the_host_nor_the_inner_port(tmp_path: Path, publish: str, expected: tuple[str, int, int]):
    container = request_for(
        tmp_path, BASE + f'container: {{publish: "{publish}"}}\n', {"PORT": "9001"}
    ).layout.container
    assert (container.publish_host, container.publish_port, container.container_port) == expected


@pytest.mark.parametrize(
    ("variable", "value", "reason"),
    [
        ("TP_SIZE", "four", "env TP_SIZE: parallel.tensor: expected a whole number"),
        ("TP_SIZE", "0", "env TP_SIZE: parallel.tensor: 0 is below 1"),
        ("TP_SIZE", " 4", "env TP_SIZE: parallel.tensor: expected a whole number"),
        ("PP_SIZE", "2.0", "env PP_SIZE: parallel.pipeline: expected a whole number"),
        ("PORT", "http", "PORT='http' is not a port number"),
        ("PORT", "1:2", "PORT='1:2' is not a port number"),
        ("PORT", "70000", "env PORT: container.publish:"),
        ("ALLOW_UNVERIFIED_PP", "yes", "ALLOW_UNVERIFIED_PP='yes' is neither 1 nor 0"),
        ("DISABLE_CUSTOM_ALL_REDUCE", "2", "DISABLE_CUSTOM_ALL_REDUCE='2' is neither 1 nor 0"),
        ("FORCE_V2_RUNNER", "yes", "env FORCE_V2_RUNNER: v2_runner: 'yes' is neither 1 nor 0"),
        ("HF_OVERRIDES", "{", "HF_OVERRIDES is not valid JSON"),
        ("HF_OVERRIDES", "[1]", "HF_OVERRIDES must be a JSON object"),
        ("HF_OVERRIDES", '{"a": ' + "[" * 100 + "]" * 100 + "}", "HF_OVERRIDES is nested more than 64 levels"),
        ("HF_OVERRIDES", "[" * 100_000, "HF_OVERRIDES is not valid JSON"),
        ("HF_OVERRIDES", '{"a": "\\ud800"}', "HF_OVERRIDES is not UTF-8 text"),
        ("AGENT_PROBE_TRIALS", "0", "env AGENT_PROBE_TRIALS: probes.degen.trials: 0 is below 1"),
        ("IMAGE", "\udcff", "IMAGE is not UTF-8 text"),
        ("IMAGE", "--privileged", "env IMAGE: engine.image: '--privileged' cannot name an image"),
        ("DEPLOY_DIGEST", "abc", "env DEPLOY_DIGEST: engine.digest: 'abc' is not an image digest"),
        ("DEPLOY_RUNTIME", "k8s", "env DEPLOY_RUNTIME: runtime: 'k8s' is not one of docker, local"),
        ("DEPLOY_WAIT_TIMEOUT", "-5", "env DEPLOY_WAIT_TIMEOUT: wait.timeout_s: -5 is below 1"),
    ],
)
def test_a_bad_override_is_refused_by_its_variable(tmp_path: Path, variable: str, value: str, reason: str):
    with pytest.raises(UsageError) as caught:
        request_for(tmp_path, BASE, {variable: value})
    assert caught.value.what.startswith(reason)


def test_verbatim_numbers_of_overrides_are_not_rewritten(tmp_path: Path):
    request = request_for(tmp_path, BASE, {"GPU_MEMORY_UTILIZATION": "0.90"}, ("serve.swap_space=0.50", "env.A=1.0"))
    words = argv(request)
    assert words[words.index("--gpu-memory-utilization") + 1] == "0.90"
    assert words[words.index("--swap-space") + 1] == "0.50"
    assert env(request)["A"] == "1.0"


def test_set_takes_scalars_lists_maps_nulls_and_empty_text(tmp_path: Path):
    request = request_for(
        tmp_path,
        BASE + "serve: {seed: 1}\nenv: {GONE: x}\nparallel: {pipeline: 2}\n",
        sets=(
            "parallel.tensor=8",
            "parallel.layer_partition=[41, 37]",
            "serve.compilation_config={level: 3}",
            "serve.compilation_config.sizes=[1]",
            "serve.seed=null",
            "env.GONE=~",
            "env.EMPTY=",
            " env.B = no ",
            "env.C=a=b",
        ),
    )
    layout, words = request.layout, argv(request)
    assert (layout.parallel.tensor, layout.parallel.layer_partition) == (8, "41,37")
    assert words[words.index("--compilation-config") + 1] == '{"level":3,"sizes":[1]}'
    assert "--seed" not in words
    assert {name: env(request).get(name) for name in ("GONE", "EMPTY", "B", "C")} == {
        "GONE": None,
        "EMPTY": "",
        "B": "no",
        "C": "a=b",
    }


def test_set_wins_over_the_environment_and_the_last_set_over_the_first(tmp_path: Path):
    request = request_for(tmp_path, BASE, {"TP_SIZE": "2"}, ("parallel.tensor=4", "parallel.tensor=8"))
    assert request.layout.parallel.tensor == 8
    assert [str(override) for override in request.overrides] == [
        "env TP_SIZE: parallel.tensor = 2 (was unset)",
        "--set parallel.tensor: parallel.tensor = 4 (was 2)",
        "--set parallel.tensor: parallel.tensor = 8 (was 4)",
    ]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("parallel.tensor", "--set 'parallel.tensor' is not KEY=VALUE"),
        ("=8", "--set '=8' is not KEY=VALUE"),
        ("parallel..tensor=8", "--set 'parallel..tensor=8' is not KEY=VALUE"),
        (".=8", "--set '.=8' is not KEY=VALUE"),
        ("", "--set '' is not KEY=VALUE"),
        ("parallel.tensor=[", "--set parallel.tensor:"),
        ("parallel.tensor=x", "--set parallel.tensor: parallel.tensor: expected a whole number"),
        ("paralel.tensor=8", "--set paralel.tensor: paralel: unknown key"),
        ("parallel.tensr=8", "--set parallel.tensr: parallel.tensr: unknown key"),
        ("name.x=1", "--set name.x: name: expected text, found a map"),
        ("parallel={tensor: [1]}", "--set parallel: parallel.tensor: expected a whole number, found a list"),
        ("name=\udcff", "--set is not UTF-8 text"),
        ("serve." + "a." * 100 + "b=1", "--set 'serve.a.a"),
    ],
)
def test_a_bad_set_is_refused_by_its_key(tmp_path: Path, text: str, reason: str):
    with pytest.raises(UsageError) as caught:
        request_for(tmp_path, BASE, sets=(text,))
    assert caught.value.what.startswith(reason)


def test_forced_runner_is_not_outvoted_by_the_layouts_own_variable(tmp_path: Path):
    text = BASE + "env: {VLLM_USE_V2_MODEL_RUNNER: '1'}\n"
    request = request_for(tmp_path, text, {"FORCE_V2_RUNNER": "0"})
    pairs = [(pair.value, str(pair.origin)) for pair in request.deployment.env if pair.name.endswith("MODEL_RUNNER")]
    assert pairs == [("0", "env FORCE_V2_RUNNER")]


def test_default_layout_of_the_environment_counts(cli: Cli, tmp_path: Path):
    write_layout(tmp_path, BASE)
    result = cli("cmd", DEPLOY_PROJECT=str(tmp_path), DEPLOY_LAYOUT="demo")
    assert (result.code, "org/model" in result.out) == (0, True)
