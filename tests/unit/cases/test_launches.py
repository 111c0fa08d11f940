"""Real launches, written as layouts, render to the same container: flags, environment, mounts, ports; without alarm."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest

from shardwright.campaign.request import Request, prepare
from shardwright.render.command import SECRETS_TARGET, render

FOLDER = Path(__file__).resolve().parents[2] / "launches"
LAUNCHES = json.loads((FOLDER / "launches.json").read_text())
# What a launch leaves to a default and the layout states, and what default rules add.
OURS = {"--host": "0.0.0.0", "--port": "8000", "--tensor-parallel-size": "1", "--pipeline-parallel-size": "1"}
RULES = {"L13": {"--disable-custom-all-reduce": ""}}
RULE_ENV = {"VLLM_ENGINE_READY_TIMEOUT_S", "VLLM_USE_V2_MODEL_RUNNER"}
# Warnings that are meant: a tag that moves, and shared memory that the launch left at its default.
MEANT = {"L01": {"image-reference"}, "L10": {"shared-memory"}, "L13": {"image-reference"}}


@pytest.fixture
def request_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("DEPLOY_PROJECT", str(tmp_path))
    return lambda launch: prepare(str(FOLDER / f"{launch['id']}.yaml"), dict(os.environ))


def shell(text: str, values: dict[str, str]) -> str:
    """`${A:-${B:-c}}`, `${A}`, `$A`, `$(pwd)` and `~` as a shell in /srv/work would expand them."""
    values = {"HOME": os.path.expanduser("~"), "PWD": "/srv/work", **values}
    text = text.replace("$(pwd)", "/srv/work")
    before = None
    while before != text:
        before = text
        text = re.sub(r"\$\{(\w+):-([^${}]*)\}", lambda m: values.get(m[1]) or m[2], text)
        text = re.sub(r"\$\{(\w+)\}", lambda m: values.get(m[1], m[0]), text)
    text = re.sub(r"\$(\w+)", lambda m: values.get(m[1], m[0]), text)
    return os.path.expanduser(re.sub(r"^\.\./", "/srv/", text))


def flags(words: list[str]) -> dict[str, str]:
    """Flags with their values; the model under its own key whichever way it is given; JSON with sorted keys."""
    found: dict[str, str] = {}
    name = "model"
    for word in words:
        if word.startswith("--"):
            name, equals, value = word.partition("=")
            name = name.replace("_", "-").replace("--model", "model") if name == "--model" else name.replace("_", "-")
            found[name] = value if equals else ""
        else:
            found[name] = json.dumps(json.loads(word), sort_keys=True) if word.startswith("{") else word
    return found


def parsed(request: Request) -> dict[str, Any]:
    argv = list(render(request.deployment).argv)
    image = request.deployment.engine.image or ""
    at = argv.index(image)
    head, tail = argv[3:at], argv[at + 1 :]
    if request.deployment.secrets:
        tail = tail[tail.index("deploy") + 1 :]
    options: dict[str, list[str]] = {}
    index = 0
    while index < len(head):
        if head[index] == "--privileged":
            options["--privileged"] = [""]
            index += 1
            continue
        options.setdefault(head[index], []).append(head[index + 1])
        index += 2
    return {"tool": argv[0], "options": options, "tail": tail, "image": image}


@pytest.mark.parametrize("launch", LAUNCHES, ids=lambda launch: f"{launch['id']} {launch['desc']}")
def test_a_launch_renders_to_the_same_container(launch: dict[str, Any], request_of: Any) -> None:
    values = launch["shell"]
    request = request_of(launch)
    deployment, seen = request.deployment, parsed(request_of(launch))
    options = seen["options"]
    assert seen["image"] == shell(launch["image"], values)
    assert seen["tool"] == ("podman" if launch["id"] == "L13" else "docker")

    entry = list(deployment.engine.entrypoint if deployment.engine.entrypoint is not None else ("vllm", "serve"))
    if launch["entrypoint"] is not None:
        assert entry == launch["entrypoint"]
    tail = seen["tail"]
    started = [*options.get("--entrypoint", []), *tail] if not deployment.secrets else tail
    words = started[len(entry) :]
    wanted = [shell(word, values) for word in launch["args"]]
    if deployment.engine.command is not None:
        assert words == wanted
    else:
        ours, theirs = flags(words), flags(wanted)
        for name, value in {**OURS, **RULES.get(launch["id"], {})}.items():
            if name not in theirs and ours.get(name) == value:
                del ours[name]
            if name not in ours and theirs.get(name) == value:
                del theirs[name]
        assert ours == theirs

    env = dict(pair.split("=", 1) for pair in options.get("--env", []))
    env = {name: value for name, value in env.items() if name not in RULE_ENV}
    env |= dict.fromkeys(deployment.secrets, "")
    assert env == {name: shell(value, values) for name, value in launch["env"].items()}


@pytest.mark.parametrize("launch", LAUNCHES, ids=lambda launch: launch["id"])
def test_a_launch_keeps_its_mounts_ports_and_confinement(launch: dict[str, Any], request_of: Any) -> None:
    values, extra = launch["shell"], launch["extra"]
    seen = parsed(request_of(launch))
    options = seen["options"]

    mounts = set()
    for spec in options.get("--mount", []):
        parts = dict(part.partition("=")[::2] for part in spec.split(","))
        if parts["dst"] != SECRETS_TARGET:
            mounts.add((parts["src"], parts["dst"], "readonly" in parts))
    wanted = set()
    for text in launch["mounts"]:
        source, target, *mode = shell(text, values).split(":")
        wanted.add((shell(source, values), target, mode == ["ro"]))
    assert mounts == wanted

    ports = {
        text if text.count(":") == 2 else f"0.0.0.0:{text}" for text in (shell(p, values) for p in launch["ports"])
    }
    assert set(options.get("--publish", [])) == ports
    assert options["--ipc"] == [launch["ipc"] or "private"]
    assert options.get("--shm-size", []) == ([launch["shm"]] if launch["shm"] else [])
    assert options.get("--network", []) == ([extra["network"]] if "network" in extra else [])
    assert ("--privileged" in options) == extra.get("privileged", False)
    assert set(options["--security-opt"]) >= set(extra.get("security_opt", []))
    assert options.get("--ulimit", []) == [f"{name}={value}" for name, value in extra.get("ulimits", {}).items()]
    assert options["--restart"] == [shell(extra.get("restart", "no"), values)]
    gpus = launch["gpus"]
    if isinstance(gpus, dict) and "cdi" in gpus:
        assert options["--device"] == [gpus["cdi"]] and "--gpus" not in options
    else:
        assert options["--gpus"] == [str(gpus["count"]) if isinstance(gpus, dict) else gpus]
    if "healthcheck" in extra:
        assert options["--health-cmd"] == [extra["healthcheck"]["test"]]
        assert options["--health-start-period"] == [extra["healthcheck"]["start_period"]]


@pytest.mark.parametrize("launch", LAUNCHES, ids=lambda launch: launch["id"])
def test_a_real_launch_raises_no_false_alarm(launch: dict[str, Any], request_of: Any) -> None:
    findings = request_of(launch).assessment.findings
    assert [finding for finding in findings if finding.verdict == "reject"] == []
    assert {finding.gate for finding in findings if finding.verdict == "warn"} == MEANT.get(launch["id"], set())
