"""The rendered command line: what is shown is what runs, and a shell reads it back token by token."""

from __future__ import annotations

import csv
import shlex
import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardwright.campaign.request import Request, prepare
from shardwright.connect.project import Project
from shardwright.layout.provenance import Origin
from shardwright.render.command import Part, RenderedCommand, render
from shardwright.render.explain import explain_rows
from shardwright.render.shell import shell_lines
from tests.unit.helpers import BASE, GLM, LOCAL, ROOT, SHIPPED, request_for

TOKENS = st.text(st.characters(exclude_characters="\x00", exclude_categories=["Cs"]))
NASTY = (
    'serve:\n  chat_template: "it\'s \\"quoted\\" $HOME `id` \\\\ !x"\n  stop: "a\\nb\\tc"\n'
    "  system: 'préfixe 你好 \u2028 🙂'\n  glob: '*?[a]{b,c}~'\n  empty: ''\n  dash: --x y\n"
    "env:\n  A: \"two words\"\n  B: \"$(reboot); 'x'\"\n  C: \"line\\nline\"\n  D: ''\n  E: '=#&|<>'\n"
)


def read_back(command: RenderedCommand) -> list[str]:
    """The tokens of the printed text. shlex, unlike a shell, gives the newline of each continued line as a token."""
    return without_newlines(shlex.split(shell_lines(command)))


def without_newlines(tokens: Iterable[str]) -> list[str]:
    return [token for token in tokens if token != "\n"]


@pytest.mark.parametrize("text", [BASE, GLM, BASE + NASTY, GLM + NASTY.replace("serve:", "serve:\n  seed: 1")])
def test_a_pasted_docker_command_is_what_start_would_run(tmp_path: Path, text: str):
    command = render(request_for(tmp_path, text).deployment)
    assert read_back(command) == list(command.argv)


@pytest.mark.parametrize("text", [LOCAL, LOCAL + NASTY])
def test_a_pasted_local_command_is_what_start_would_run(tmp_path: Path, text: str):
    command = render(request_for(tmp_path, text).deployment)
    pairs = [f"{name}={value}" for name, value in command.env]
    assert read_back(command) == ["env", *pairs, *command.argv]


@settings(max_examples=200, deadline=None, derandomize=True, database=None)
@given(st.lists(st.lists(TOKENS, min_size=1, max_size=4), min_size=1, max_size=5))
def test_no_token_is_changed_by_quoting(parts: list[list[str]]):
    command = RenderedCommand(tuple(Part("command", tuple(tokens), Origin("rule", "r")) for tokens in parts), (), None)
    assert read_back(command) == without_newlines(token for tokens in parts for token in tokens)


def test_a_real_shell_reads_the_same_tokens(tmp_path: Path):
    request = request_for(tmp_path, BASE + NASTY)
    text = shell_lines(render(request.deployment)).replace("docker run", "printf '%s\\0'", 1)
    done = subprocess.run(["/bin/sh", "-c", text], capture_output=True, check=True)
    assert done.stdout.decode().split("\0")[:-1] == list(render(request.deployment).argv[2:])


@pytest.mark.parametrize("name", SHIPPED)
def test_explain_leaves_out_no_token(name: str):
    command = render(prepare(name, {}, project=Project(ROOT, (ROOT,))).deployment)
    rows = explain_rows(command)
    everything = [token for part in command.parts for token in part.tokens]
    assert " ".join(row.tokens for row in rows) == " ".join(everything)
    assert all(row.origin and row.kind for row in rows)
    if not command.env:
        assert everything == list(command.argv)


def test_explain_names_the_right_origin_for_each_kind(tmp_path: Path):
    request = request_for(tmp_path, GLM + "parallel: {pipeline: 2}\npatches: [pp-index-transport]\n", {"PORT": "9001"})
    rows = {
        (row.kind, row.tokens.split(" ")[0], row.tokens.split(" ")[-1]): row.origin
        for row in explain_rows(render(request.deployment))
    }
    assert rows[("command", "--publish", "127.0.0.1:9001:8000")] == "env PORT"
    assert rows[("command", "--shm-size", "64g")].startswith("configs/layouts/base/a100-80g-x8.yaml:")
    assert rows[("command", "--stop-timeout", "30")] == "rule container-stop-timeout-s"
    assert rows[("env", "--env", "NCCL_DEBUG=WARN")].startswith("configs/layouts/base/a100-80g-x8.yaml:")
    assert "patch pp-index-transport" in rows.values()


def test_the_order_of_argv_does_not_move(tmp_path: Path):
    text = GLM + "parallel: {tensor: 2, pipeline: 2, layer_partition: [42, 36]}\nserve: {max_model_len: 9, seed: 1}\n"
    first = render(request_for(tmp_path, text).deployment).argv
    again = render(request_for(tmp_path, text).deployment).argv
    assert first == again
    flags = [token for token in first if token.startswith("--")]
    assert flags[:2] == ["--detach", "--pull"]
    assert flags[-8:] == [
        "--tensor-parallel-size",
        "--pipeline-parallel-size",
        "--disable-custom-all-reduce",
        "--served-model-name",
        "--gpu-memory-utilization",
        "--max-model-len",
        "--seed",
        "--speculative-config",
    ]


def test_the_container_is_confined_unless_the_layout_says_otherwise(tmp_path: Path):
    words = list(render(request_for(tmp_path, BASE).deployment).argv)
    assert "--privileged" not in words
    assert words[words.index("--security-opt") + 1] == "no-new-privileges"
    assert words[words.index("--restart") + 1] == "no"
    assert words[words.index("--publish") + 1] == "127.0.0.1:8000:8000"
    assert words[words.index("--pull") + 1] == "never"


def test_host_networking_publishes_nothing(tmp_path: Path):
    words = render(request_for(tmp_path, BASE + "container: {network: host}\n").deployment).argv
    assert ("--publish" in words, "--network" in words) == (False, True)


def test_an_image_with_a_digest_is_run_by_digest(tmp_path: Path):
    text = BASE.replace('"engine:1"', '"engine:1", digest: "sha256:0123"')
    assert "engine:1@sha256:0123" in render(request_for(tmp_path, text).deployment).argv


def test_secrets_are_mounted_and_neither_named_nor_shown_in_argv(tmp_path: Path):
    command = render(request_for(tmp_path, BASE + "secrets: [HF_TOKEN]\n").deployment)
    assert command.secrets_file == f"{tmp_path}/.deploy/secrets/demo.env"
    assert f"type=bind,src={command.secrets_file},dst=/run/secrets/deploy.env,readonly" in command.argv
    assert not any("HF_TOKEN" in token for token in command.argv)


def test_without_secrets_no_shell_stands_before_the_engine(tmp_path: Path):
    words = list(render(request_for(tmp_path, BASE).deployment).argv)
    assert words[words.index("--entrypoint") + 1] == "vllm"
    assert words[words.index("engine:1") + 1 :][:2] == ["serve", "org/model"]


def test_the_local_engine_runs_the_named_interpreter_with_its_variables(tmp_path: Path):
    command = render(request_for(tmp_path, LOCAL).deployment)
    assert command.argv[:5] == (f"{tmp_path}/.venv/bin/python", "-P", "-m", "vllm.entrypoints.cli.main", "serve")
    assert dict(command.env)["HF_HUB_OFFLINE"] == "1"
    assert not any("HF_HUB_OFFLINE" in token for token in command.argv)


def mount_specs(request: Request) -> list[str]:
    words = render(request.deployment).argv
    return [words[index + 1] for index, word in enumerate(words) if word == "--mount"]


def test_mounts_are_read_only_unless_the_layout_says_otherwise(tmp_path: Path):
    text = BASE + "container: {mounts: [{source: /a, target: /b}, {source: c, target: /d, readonly: false}]}\n"
    assert mount_specs(request_for(tmp_path, text)) == [
        "type=bind,src=/a,dst=/b,readonly",
        f"type=bind,src={tmp_path}/c,dst=/d",
    ]


# Docker reads the value of --mount as a line of CSV.
AWKWARD = ["/a,b", '/a"b', "/a,readonly", "/a=b", "/a b", "/é", '/",",x']


@pytest.mark.parametrize("source", AWKWARD)
def test_a_comma_in_a_path_does_not_become_another_mount_option(tmp_path: Path, source: str):
    quoted = source.replace("'", "''")
    text = BASE + f"container: {{mounts: [{{source: '{quoted}', target: '{quoted}'}}]}}\n"
    (spec,) = mount_specs(request_for(tmp_path, text))
    assert list(csv.reader([spec])) == [["type=bind", f"src={source}", f"dst={source}", "readonly"]]


@pytest.mark.parametrize("source", AWKWARD)
@pytest.mark.skipif(shutil.which("docker") is None, reason="docker is not installed")
def test_dockers_own_parser_takes_these_paths(tmp_path: Path, source: str):
    text = BASE + f"container: {{mounts: [{{source: '{source}', target: '{source}'}}]}}\n"
    (spec,) = mount_specs(request_for(tmp_path, text))
    nobody = ["docker", "--host", f"unix://{tmp_path}/none.sock"]
    done = subprocess.run([*nobody, "create", "--mount", spec, "x"], capture_output=True, text=True)
    assert "invalid argument" not in done.stderr
    assert "Cannot connect" in done.stderr or "no such file" in done.stderr
