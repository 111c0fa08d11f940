"""A launch out of shell text as a layout: what it says, what it cannot say, and what is refused."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardwright.campaign.importing.launch import Launch, read_launch
from shardwright.campaign.importing.layout_text import check_layout, layout_text
from shardwright.errors import UsageError
from tests.unit.helpers import ROOT, Result

ALIASES = {"-tp": "--tensor-parallel-size", "-pp": "--pipeline-parallel-size", "-O": "--optimization-level"}
TOKEN = "hf_" + "A1b2C3d4E5f6G7h8I9j0K1"
IMAGE = "vllm/vllm-openai:v0.30.0"


def read(text: str, **options: Any) -> Launch:
    launch = read_launch(text, ALIASES, **options)
    check_layout(layout_text(launch.layout, "test"))
    return launch


def told(launch: Launch) -> list[str]:
    return [remark.message for remark in launch.remarks]


def docker(options: str, words: str = "--model org/model") -> str:
    return f"docker run -p 127.0.0.1:8000:8000 {options} {IMAGE} {words}"


def test_the_flags_behind_a_lost_backslash_are_read_and_told() -> None:
    launch = read(
        'vllm serve org/model \\\n    --reasoning-config \'{"reasoning_end_str":"</think>"}\'\n'
        "    --enable-prefix-caching \\\n    --max-num-seqs 8\n",
        version="0.30.0",
    )
    assert told(launch) == ["the command ends before --enable-prefix-caching (missing backslash)"]
    assert launch.layout["serve"] == {
        "reasoning_config": {"reasoning_end_str": "</think>"},
        "enable_prefix_caching": True,
        "max_num_seqs": "8",
    }


@pytest.mark.parametrize(
    ("words", "keys"),
    [
        ("-tp 4 -pp=2", {"parallel": {"tensor": "4", "pipeline": "2"}}),
        ("--max_model_len 32k -O3", {"serve": {"max_model_len": "32k", "optimization_level": "3"}}),
        ("--seed -1 --a=b", {"serve": {"seed": "-1", "a": "b"}}),
        ("--served-model-name a b", {"serve": {"served_model_name": ["a", "b"]}}),
        ("--no-enable-prefix-caching --x", {"serve": {"enable_prefix_caching": False, "x": True}}),
        ("--kernel-config.a.b 1", {"serve": {"kernel_config.a.b": "1"}}),
        ("--x '{broken'", {"serve": {"x": "{broken"}}),
        ("--revision main", {"model": {"path": "org/model", "revision": "main"}}),
        (
            """--speculative-config '{"method": "eagle3", "model": "a/b", "num_speculative_tokens": 2}'""",
            {"speculative": {"method": "eagle3", "model": "a/b", "num_speculative_tokens": 2}},
        ),
        (
            "--speculative-config.method mtp --spec-tokens 3",
            {"speculative": {"method": "mtp", "num_speculative_tokens": "3"}},
        ),
    ],
)
def test_flags_become_keys(words: str, keys: Mapping[str, Any]) -> None:
    launch = read(docker("--gpus all", f"--model org/model {words}"))
    assert {key: launch.layout.get(key) for key in keys} == keys
    assert told(launch) == []


@pytest.mark.parametrize(
    ("options", "container"),
    [
        ("--gpus '\"device=0,1\"'", {"gpus": '"device=0,1"'}),
        ("-itd --rm --name x --pull always --label a=b", {}),
        (
            "--ipc=host --shm-size 16g --net host",
            {"ipc": "host", "shm_size": "16g", "network": "host", "publish": "0.0.0.0:8000:8000"},
        ),
        ("-v ./a:/b:ro", {"mounts": [{"source": "./a", "target": "/b", "readonly": True}]}),
        ("-v $HOME/a:/b", {"mounts": [{"source": "~/a", "target": "/b", "readonly": False}]}),
        ("-v cache:/b", {"mounts": [{"volume": "cache", "target": "/b", "readonly": False}]}),
        ("--mount type=bind,src=/a,dst=/b,readonly", {"mounts": [{"source": "/a", "target": "/b", "readonly": True}]}),
        (
            "--ulimit memlock=-1 --privileged --device /dev/x",
            {"ulimits": {"memlock": "-1"}, "privileged": True, "devices": ["/dev/x"]},
        ),
        ("--restart unless-stopped --stop-timeout 60", {"restart": "unless-stopped", "stop_timeout_s": 60}),
        ("--health-cmd 'curl x' --health-interval 1m", {"healthcheck": {"command": "curl x", "interval_s": 60}}),
        ("--security-opt no-new-privileges --security-opt label=disable", {"security_opt": ["label=disable"]}),
    ],
)
def test_options_become_the_container(options: str, container: Mapping[str, Any]) -> None:
    launch = read(docker(options))
    assert launch.layout["container"] == {"publish": "127.0.0.1:8000:8000", **container}
    assert told(launch) == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--user 1000", "--user 1000 cannot be said in a layout and is left out"),
        ("--runtime nvidia", "--runtime nvidia cannot be said in a layout and is left out"),
        ("--read-only", "--read-only cannot be said in a layout and is left out"),
        ("-v /a:/b:z", "--volume …:z cannot be said in a layout and is left out"),
        ("-v /a", "the volume /a is left out"),
        ("--mount type=tmpfs,dst=/x", "--mount type=tmpfs,dst=/x cannot be said in a layout and is left out"),
    ],
)
def test_what_no_layout_can_say_is_named(options: str, message: str) -> None:
    assert told(read(docker(options))) == [message]


def test_variables_reach_the_engine_and_what_the_launcher_decides_becomes_its_key() -> None:
    launch = read(
        "export A=1\n"
        + docker("-e A -e B='x y' -e EMPTY= -e VLLM_PP_LAYER_PARTITION=41,37 -e VLLM_USE_V2_MODEL_RUNNER=1")
    )
    assert launch.layout["env"] == {"A": "1", "B": "x y", "EMPTY": ""}
    assert launch.layout["parallel"] == {"layer_partition": "41,37"}
    assert launch.layout["v2_runner"] == "1"


def test_secrets_are_kept_by_name_alone() -> None:
    variables = f"-e HF_TOKEN -e X_TOKEN=$X_TOKEN -e HUGGING_FACE_HUB_TOKEN=$HF_TOKEN -e MY_KEY={TOKEN}"
    text = docker(variables, f"--model org/model --api-key {TOKEN} --x {TOKEN} --hf-token opensesame")
    launch = read(text)
    assert launch.layout["secrets"] == ["HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "MY_KEY", "VLLM_API_KEY", "X_TOKEN"]
    shown = layout_text(launch.layout, "test") + repr(launch.remarks)
    assert TOKEN not in shown
    assert "opensesame" not in shown
    assert sorted(told(launch)) == [
        "--hf-token holds a secret in plain text, and is left out",
        "--x holds a secret in plain text, and is left out",
        "HUGGING_FACE_HUB_TOKEN is taken from HF_TOKEN; a layout reads it by its own name",
        "MY_KEY holds a secret in plain text; only its name is kept",
        "VLLM_API_KEY holds a secret in plain text; only its name is kept",
    ]


@pytest.mark.parametrize(
    ("mounts", "model", "path", "mount"),
    [
        ("-v /srv/m:/models", "/models/a", "/srv/m/a", "/models/a"),
        ("-v /srv/m:/models/a", "/models/a", "/srv/m", "/models/a"),
        ("-v /models:/models", "/models/a", "/models/a", None),
        ("", "/models/a", "/models/a", None),
        ("-v /srv/m:/mod", "/models/a", "/models/a", None),
        ("", "org/model", "org/model", None),
    ],
)
def test_the_model_is_where_its_mount_comes_from(mounts: str, model: str, path: str, mount: str | None) -> None:
    launch = read(docker(mounts, f"--model {model}"))
    assert launch.layout["model"] == {"path": path, **({"mount": mount} if mount else {})}


@pytest.mark.parametrize(
    ("text", "engine"),
    [
        (f"docker run -p 1:8000 {IMAGE} org/model", {"entrypoint": []}),
        (f"docker run -p 1:8000 {IMAGE} vllm serve org/model", {}),
        (f"docker run -p 1:8000 --entrypoint vllm {IMAGE} serve org/model", {}),
        (
            f"docker run -p 1:8000 {IMAGE} python3 -m vllm.entrypoints.openai.api_server --model org/model",
            {"entrypoint": ["python3", "-m", "vllm.entrypoints.openai.api_server"], "model_flag": True},
        ),
        (f"docker run -p 1:8000 --entrypoint bash {IMAGE} -c 'exec vllm serve org/model'", {}),
        (
            f"docker run -p 1:8000 --entrypoint sh {IMAGE} -c 'a; exec vllm serve \"$@\"' -- org/model",
            {"entrypoint": ["sh", "-c", 'a; exec vllm serve "$@"', "--"]},
        ),
    ],
)
def test_what_the_container_begins_with_stays(text: str, engine: Mapping[str, Any]) -> None:
    assert read(text).layout["engine"] == {"image": IMAGE, "vllm": "0.30.0", **engine}


def test_a_launch_without_a_container() -> None:
    launch = read(
        "export VLLM_CPU_KVCACHE_SPACE=1\n"
        "OMP_NUM_THREADS=2 exec /opt/venv/bin/vllm serve org/model --port 9000 --host 0.0.0.0\n",
        version="0.30.0",
        name="mine",
    )
    assert launch.layout["runtime"] == "local"
    assert launch.layout["engine"] == {"vllm": "0.30.0", "python": "/opt/venv/bin/python", "platform": "cpu"}
    assert launch.layout["env"] == {"VLLM_CPU_KVCACHE_SPACE": "1", "OMP_NUM_THREADS": "2"}
    assert launch.layout["container"] == {"publish": "0.0.0.0:9000:9000"}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--model org/model --port 9000", "the engine listens on 9000, and 127.0.0.1:8000:8000 is published"),
        ('--model org/model "$@"', "$@ passes on what the script itself is given, and is left out"),
        ("--model org/model --x $X", "serve.x still holds a variable or a command: ${X}"),
        ("--model org/model --x 1 --x 2", "--x is given twice"),
        (
            """--model org/model --speculative-config '{"method": "mtp", "odd": 1}'""",
            "the key 'odd' of --speculative-config cannot be said in a layout and is left out",
        ),
    ],
)
def test_what_reads_otherwise_than_it_looks_is_told(words: str, message: str) -> None:
    assert told(read(docker("", words))) == [message]


def test_a_launch_that_publishes_nothing_is_told() -> None:
    launch = read(f"docker run {IMAGE} org/model")
    assert launch.layout["container"] == {"publish": "127.0.0.1:8000:8000"}
    assert told(launch) == ["the launch publishes no port; this one does, on this host alone"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("echo hello", "no launch of vLLM is in this text"),
        ("services:\n  a:\n    image: b\n", "this is a file of docker compose"),
        ("docker run", "docker run names no image"),
        ("docker run --gpus", "--gpus needs a value"),
        ("docker run --odd x img --model m", "--odd is no option of docker run that can be read here"),
        ("docker run engine --model m", "which vLLM is in the image engine is not said"),
        ("vllm serve m", "which vLLM is in this host's Python is not said"),
        ("docker run $IMG --model m", "the image is ${IMG}, and the text does not say what IMG is"),
        (docker("", "--model $M"), "the model is ${M}, and the text does not say what M is"),
        (docker("", "--x 1"), "the launch names no model"),
        (docker("", "single"), "the container runs single, which is no vLLM"),
        (docker("", "--model m -zz 1"), "-zz is no short flag of the engine"),
        (docker("", "a/m --x -- y"), "is no short flag of the engine"),
        (docker("", "a/m n"), "'n' is neither a flag nor the value of one"),
        (docker("", "a/m --speculative-config x"), "--speculative-config is not a JSON object"),
        (docker("--entrypoint sh", "-c 'vllm serve a; vllm serve b'"), "-c holds 2 launches of vLLM, not one"),
        ("docker run 'a", "a single quote on line 1 is never closed"),
    ],
)
def test_what_cannot_be_understood_is_one_line(text: str, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        read(text)
    assert message in caught.value.what


def test_of_several_launches_one_is_named() -> None:
    text = f"docker run -p 1:8000 {IMAGE} --model a/b\nvllm serve c/d\n"
    with pytest.raises(UsageError, match="there are 2 launches, on the lines 1, 2"):
        read(text)
    assert read(text, nth=2, version="0.30.0").layout["model"] == {"path": "c/d"}
    with pytest.raises(UsageError, match="there are only 2 launches"):
        read(text, nth=3)


WORDS = (
    *("docker", "run", "-e", "A=$B", "-v", "/a:/b", "--gpus", "all", IMAGE, "vllm", "serve", "m", "--x", "-tp", "2"),
    *("'{\"a\": 1}'", "\\\n", "\n", "$(x)", '"$@"', "(", ")", "A=(", "'", ";", "#"),
)


@settings(max_examples=300)
@given(st.lists(st.sampled_from(WORDS), max_size=25))
def test_no_order_of_words_is_a_surprise(words: list[str]) -> None:
    try:
        launch = read_launch(" ".join(words), ALIASES, version="0.30.0")
        check_layout(layout_text(launch.layout, "test"))
    except UsageError:
        pass


def test_the_command_prints_a_layout_that_check_reads(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], cli: Callable[..., Result]
) -> None:
    script = tmp_path / "run.sh"
    script.write_text(docker("--gpus all --user 1000", "--model org/model --max-model-len 4096") + "\n")
    result = cli("import", str(script), "--name", "mine")
    assert result.code == 0
    assert "WARNING import: --user 1000 cannot be said in a layout and is left out" in result.err
    layout = tmp_path / "mine.yaml"
    layout.write_text(result.out)
    assert cli("check", str(layout), "--json").code in (0, 1)
    data = json.loads(cli("import", str(script), "--json").out)
    assert (data["layout"].splitlines()[1], len(data["findings"])) == ("schema: shardwright/v1", 1)
    for wrong in (tmp_path / "none.sh", tmp_path):
        result = cli("import", str(wrong))
        assert (result.code, result.out) == (64, "")


@pytest.mark.parametrize(
    "text",
    [
        docker(f"--log-opt token={TOKEN}"),
        docker("--log-opt api-token=opensesame"),
        docker("", f"org/model {TOKEN}"),
        docker("", f"org/model --x '$(a) {TOKEN}'"),
    ],
)
def test_no_message_shows_a_secret(text: str) -> None:
    try:
        launch = read(text)
    except UsageError as error:
        assert TOKEN not in error.what
    else:
        assert TOKEN not in repr(launch) and "opensesame" not in repr(launch)


@pytest.mark.parametrize("ports", ["-p 9000:9000 -p 8000:8000", "-p 8000:8000 -p 9000:9000"])
def test_of_several_ports_the_engines_own_is_published(ports: str) -> None:
    launch = read(f"docker run {ports} {IMAGE} org/model")
    assert launch.layout["container"] == {"publish": "0.0.0.0:8000:8000"}
    assert told(launch) == ["the published port 0.0.0.0:9000:9000 is left out"]


def test_a_port_without_an_address_is_open_to_all_as_docker_reads_it() -> None:
    assert read(f"docker run -p 9000:8000 {IMAGE} org/model").layout["container"] == {"publish": "0.0.0.0:9000:8000"}


def test_variables_of_an_inner_shell_are_the_engines() -> None:
    inner = "export NCCL_DEBUG=INFO; VLLM_X=1 vllm serve org/model"
    launch = read(docker("-e HF_TOKEN --entrypoint bash", f"-c '{inner}'"))
    assert launch.layout["env"] == {"NCCL_DEBUG": "INFO", "VLLM_X": "1"}
    assert told(launch) == []


def test_a_log_file_is_no_value_of_a_flag() -> None:
    launch = read("vllm serve org/model --enforce-eager --max-model-len 4096 > log.txt 2>&1 &\n", version="0.30.0")
    assert launch.layout["serve"] == {"enforce_eager": True, "max_model_len": "4096"}


def test_a_launch_out_of_a_readme_is_read_whole() -> None:
    launch = read((ROOT / "tests" / "data" / "launch.sh").read_text())
    assert told(launch) == ["the command ends before --enable-auto-tool-choice (missing backslash)"]
    layout = launch.layout
    assert (layout["name"], layout["model"]) == ("glm53", {"path": "/models/GLM-5.3-W4A16"})
    assert layout["parallel"] == {"tensor": "4", "pipeline": "2", "layer_partition": "41,37"}
    assert layout["serve"] == {
        "served_model_name": "glm-5.3",
        "max_model_len": "524288",
        "enable_auto_tool_choice": True,
        "tool_call_parser": "glm47",
    }
    assert (layout["speculative"]["method"], layout["secrets"]) == ("mtp", ["HF_TOKEN"])


def test_nothing_of_the_text_is_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subprocess, "Popen", None)
    trap = tmp_path / "trap"
    launch = read(f"X=$(touch {trap})\n" + docker(f"-e A=`touch {trap}`", '--model org/model --x "$X"'))
    assert not trap.exists()
    assert len(told(launch)) == 2
