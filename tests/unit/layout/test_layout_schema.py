"""A layout's keys and values: what is accepted, and what is refused with file, line, key and a way out."""

from __future__ import annotations

from pathlib import Path

import pytest

from shardwright.errors import UsageError
from tests.unit.helpers import BASE, argv, env, request_for


def refusal(root: Path, text: str) -> UsageError:
    with pytest.raises(UsageError) as caught:
        request_for(root, text)
    return caught.value


@pytest.mark.parametrize(
    ("extra", "where", "hint"),
    [
        ("paralel: {tensor: 2}\n", "demo.yaml:5: paralel: unknown key", "'parallel'"),
        ("parallel:\n  tensors: 2\n", "demo.yaml:6: parallel.tensors: unknown key", "'tensor'"),
        ("container:\n  gpu: all\n", "demo.yaml:6: container.gpu: unknown key", "'gpus'"),
        ("probes: {degen: {trial: 3}}\n", "demo.yaml:5: probes.degen.trial: unknown key", "'trials'"),
        ("container: {mounts: [{source: a, target: /b, ro: true}]}\n", "mounts.0.ro: unknown key", "known here"),
        ("wait: {timeout: 3}\n", "demo.yaml:5: wait.timeout: unknown key", "'timeout_s'"),
        ("zzzz: 1\n", "demo.yaml:5: zzzz: unknown key", "known here: "),
    ],
)
def test_a_mistyped_key_is_not_ignored(tmp_path: Path, extra: str, where: str, hint: str):
    error = refusal(tmp_path, BASE + extra)
    assert where in error.what
    assert hint in error.fix


@pytest.mark.parametrize(
    ("extra", "key", "reason"),
    [
        ("parallel: {tensor: two}\n", "parallel.tensor", "expected a whole number, found text"),
        ("parallel: {tensor: 2.0}\n", "parallel.tensor", "expected a whole number, found a number"),
        ("parallel: {tensor: true}\n", "parallel.tensor", "expected a whole number, found true/false"),
        ("parallel: {pipeline: 0}\n", "parallel.pipeline", "0 is below 1"),
        ("parallel: [1]\n", "parallel", "expected a map, found a list"),
        ("parallel: {layer_partition: {a: 1}}\n", "parallel.layer_partition", "expected a list, found a map"),
        ("parallel: {layer_partition: [1, [2]]}\n", "parallel.layer_partition.1", "expected text, found a list"),
        ("serve: [1]\n", "serve", "expected a map, found a list"),
        ("env: {A: {b: 1}}\n", "env.A", "expected text"),
        ("env: {A: [1]}\n", "env.A", "expected text"),
        ('env: {"A=B": 1}\n', "env.A=B", "not the name of a variable"),
        ('env: {"": 1}\n', "env.", "not the name of a variable"),
        ("env: {9A: 1}\n", "env.9A", "not the name of a variable"),
        ("runtime: podman\n", "runtime", "is not one of docker, local"),
        ("status: done\n", "status", "is not one of ready, testing, rejected"),
        ("patches: pp-x\n", "patches", "expected a list, found text"),
        ('patches: ["../x"]\n', "patches", "is not the name of a patch"),
        (f"patches: [{'a' * 300}]\n", "patches", "is not the name of a patch"),
        ("container: {publish: '70000'}\n", "container.publish", "is not HOST:PORT:PORT"),
        ("container: {publish: '127.0.0.1:0:8000'}\n", "container.publish", "is not HOST:PORT:PORT"),
        (f"container: {{publish: '{'9' * 5000}'}}\n", "container.publish", "is not HOST:PORT:PORT"),
        ("container: {publish: 'a b:1:1'}\n", "container.publish", "is not HOST:PORT:PORT"),
        ("container: {publish: '1:2:3:4:5'}\n", "container.publish", "is not HOST:PORT:PORT"),
        ("container: {mounts: [{source: a, target: b}]}\n", "container.mounts.0.target", "is not an absolute path"),
        ("container: {mounts: [{source: '', target: /b}]}\n", "container.mounts.0.source", "the value is empty"),
        ("hardware: {gpus: 1}\n", "hardware", "the key 'compute_capability' is missing"),
        (
            "hardware: {gpus: 1, compute_capability: '8.0', memory_gib: 1.0e999}\n",
            "hardware.memory_gib",
            "expected a number",
        ),
        ("hardware: {gpus: 1, compute_capability: '8.0', memory_gib: 0}\n", "hardware.memory_gib", "is not above 0"),
        (f"parallel: {{tensor: {'9' * 400}}}\n", "parallel.tensor", "a number of 400 digits makes no sense"),
        (
            "hardware: {gpus: 1, compute_capability: sm80, memory_gib: 1}\n",
            "hardware.compute_capability",
            "is not a compute",
        ),
        (
            "hardware: {gpus: 1, compute_capability: \u00b2, memory_gib: 1}\n",
            "hardware.compute_capability",
            "is not a compute",
        ),
        ("v2_runner: 2\n", "v2_runner", "is neither 1 nor 0"),
        ("probes: {degen: {trials: 0}}\n", "probes.degen.trials", "0 is below 1"),
        ("probes: {quality: {known: {tool-cut-off: ''}}}\n", "probes.quality.known", "tool-cut-off has no reason"),
        ("probes: {not_applicable: {parity: }}\n", "probes.not_applicable", "parity has no reason"),
        ("probes: {speed: {scatter: 1.5}}\n", "probes.speed.scatter", "1.5 is not a share below 1"),
        ("probes: {speed: {streams: [4, 1]}}\n", "probes.speed.streams", "not a rising list"),
        ("speculative: {num_speculative_tokens: 0}\n", "speculative.num_speculative_tokens", "0 is below 1"),
        ("nodes: [{rank: -1, address: a}]\n", "nodes.0.rank", "-1 is below 0"),
        ("serve: {--max-model-len: 3}\n", "serve.--max-model-len", "not the name of a flag"),
        ("serve: {max_model_len: 3, max-model-len: 4}\n", "serve.max-model-len", "is given twice"),
    ],
)
def test_a_wrong_value_is_refused_with_its_line_and_key(tmp_path: Path, extra: str, key: str, reason: str):
    what = refusal(tmp_path, BASE + extra).what
    assert what.startswith(f"configs/layouts/demo.yaml:5: {key}: ")
    assert reason in what


@pytest.mark.parametrize(
    ("old", "new", "key", "reason"),
    [
        ("org/model", "''", "model.path", "the value is empty"),
        ("org/model", "' '", "model.path", "the value is empty"),
        ("name: demo", "name: ../demo", "name", "cannot name a container"),
        ("name: demo", f"name: {'a' * 300}", "name", "cannot name a container"),
        ("name: demo", "name: -x", "name", "cannot name a container"),
        ("name: demo", "name: d\u00e9mo", "name", "cannot name a container"),
        ("0.30.0", "latest", "engine.vllm", "is not an engine version"),
        ("0.30.0", f"0.{'9' * 5000}", "engine.vllm", "is not an engine version"),
        ('image: "engine:1", ', "", "engine.image", "the key is missing, and the docker runtime needs it"),
        ("engine:1", "--privileged", "engine.image", "cannot name an image"),
        ("engine:1", "a b", "engine.image", "cannot name an image"),
        ("engine:1", "", "engine.image", "cannot name an image"),
        ("shardwright/v1", "shardwright/v9", "schema", "is not a format this version reads"),
    ],
)
def test_a_value_that_would_only_fail_in_the_container_is_refused(
    tmp_path: Path, old: str, new: str, key: str, reason: str
):
    what = refusal(tmp_path, BASE.replace(old, new)).what
    assert what.startswith("configs/layouts/demo.yaml:")
    assert f": {key}: " in what
    assert reason in what


@pytest.mark.parametrize("line", BASE.splitlines())
def test_a_missing_key_is_named(tmp_path: Path, line: str):
    what = refusal(tmp_path, BASE.replace(line + "\n", "")).what
    assert "configs/layouts/demo.yaml:" in what
    assert "is missing" in what


def test_numbers_reach_flags_and_variables_as_they_were_written(tmp_path: Path):
    request = request_for(
        tmp_path,
        BASE + "serve: {gpu_memory_utilization: 0.10, swap_space: 1.50, seed: +7, sizes: [1.0, 02]}\n"
        "env: {A: 0.10, B: 1_000, C: no, D: 12:30:45, E: true, F: 1e5}\n",
    )
    words = argv(request)
    assert words[words.index("--gpu-memory-utilization") + 1] == "0.10"
    assert words[words.index("--swap-space") + 1] == "1.50"
    assert words[words.index("--seed") + 1] == "+7"
    assert words[words.index("--sizes") + 1 :][:2] == ["1.0", "02"]
    assert {name: env(request)[name] for name in "ABCDEF"} == {
        "A": "0.10",
        "B": "1_000",
        "C": "no",
        "D": "12:30:45",
        "E": "true",
        "F": "1e5",
    }


def test_null_leaves_out_and_empty_text_stays_empty(tmp_path: Path):
    request = request_for(tmp_path, BASE + 'env: {GONE: null, EMPTY: ""}\nserve: {seed: null, chat_template: ""}\n')
    assert "GONE" not in env(request)
    assert env(request)["EMPTY"] == ""
    assert "--seed" not in argv(request)
    words = argv(request)
    assert words[words.index("--chat-template") + 1] == ""


def test_switches_maps_lists_and_dashes_become_flags_that_the_engine_can_read(tmp_path: Path):
    request = request_for(
        tmp_path,
        BASE
        + """\
serve:
  enforce_eager: true
  enable_prefix_caching: false
  compilation_config: {level: 3, sizes: [1, 2]}
  middleware: [a.b, c.d]
  allowed_origins: ["*"]
  lora_modules: [x=/a, {name: y, path: /b}]
  max_model_len: -1
  empty: []
""",
    )
    words = argv(request)
    assert "--enforce-eager" in words
    assert "--no-enable-prefix-caching" in words
    assert words[words.index("--compilation-config") + 1] == '{"level":3,"sizes":[1,2]}'
    assert [words[i + 1] for i, word in enumerate(words) if word == "--middleware"] == ["a.b", "c.d"]
    assert words[words.index("--allowed-origins") + 1] == '["*"]'
    assert words[words.index("--lora-modules") + 1 :][:2] == ["x=/a", '{"name":"y","path":"/b"}']
    assert "--max-model-len=-1" in words, "a separate -1 would be read as a flag"
    assert "--empty" not in words


def test_keys_that_begin_with_x_are_free(tmp_path: Path):
    request = request_for(tmp_path, BASE + "x-note: {any: [thing]}\nparallel: {x-why: because}\n")
    assert request.layout.name == "demo"


@pytest.mark.parametrize(
    "secrets",
    [
        "[HF_TOKEN=hf_plantedvalue]",
        "[hf_plantedvalue]",
        "[sk-plantedvalue]",
        "[plantedvalue123]",
        "{HF_TOKEN: hf_plantedvalue}",
        "[{HF_TOKEN: hf_plantedvalue}]",
        "hf_plantedvalue",
        "['HF_TOKEN: hf_plantedvalue']",
    ],
)
def test_a_secret_given_by_value_is_refused_and_not_shown(tmp_path: Path, secrets: str):
    error = refusal(tmp_path, BASE + f"secrets: {secrets}\n")
    assert "configs/layouts/demo.yaml:5: secrets" in error.what
    assert "plantedvalue" not in f"{error.what} {error.why} {error.fix}"


def test_a_secret_that_env_also_holds_is_refused_and_not_shown(tmp_path: Path):
    error = refusal(tmp_path, BASE + "secrets: [HF_TOKEN]\nenv: {HF_TOKEN: plantedvalue}\n")
    assert "secrets: HF_TOKEN has a value in env too" in error.what
    assert "plantedvalue" not in f"{error.what} {error.why} {error.fix}"


def test_secrets_by_name_are_accepted(tmp_path: Path):
    request = request_for(tmp_path, BASE + "secrets: [HF_TOKEN, VLLM_API_KEY]\nenv: {HF_TOKEN: null}\n")
    assert request.deployment.secrets == ("HF_TOKEN", "VLLM_API_KEY")


@pytest.mark.parametrize(
    ("publish", "expected"),
    [
        ("'8000'", ("127.0.0.1", 8000, 8000)),
        ("8001:8000", ("127.0.0.1", 8001, 8000)),
        ("'0.0.0.0:8001:8000'", ("0.0.0.0", 8001, 8000)),
        ("'[::1]:8001:8000'", ("[::1]", 8001, 8000)),
        ("'gpu-host:1:65535'", ("gpu-host", 1, 65535)),
    ],
)
def test_no_port_is_published_wider_than_written(tmp_path: Path, publish: str, expected: tuple[str, int, int]):
    container = request_for(tmp_path, BASE + f"container: {{publish: {publish}}}\n").layout.container
    assert (container.publish_host, container.publish_port, container.container_port) == expected
