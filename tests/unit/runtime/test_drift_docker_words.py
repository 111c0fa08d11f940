"""A rendered `docker run`, read back, is the container that Docker reports of it; each option in either spelling."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from shardwright.connect.docker_sdk import ContainerFacts, Executed, ImageFacts
from shardwright.render import command as render_command
from shardwright.runtime.description import MountedFrom, value_digest
from shardwright.runtime.docker_drift import running_container
from shardwright.runtime.docker_options import inspected_options, security
from shardwright.runtime.docker_wanted import BARE_FLAGS, describe_run, read_mount, read_run

IMAGE = ImageFacts(
    "sha256:image",
    (),
    {
        "Env": ["PATH=/bin", "LANG=C"],
        "Entrypoint": ["vllm", "serve"],
        "Cmd": ["--help"],
        "Healthcheck": {"Test": ["CMD", "true"], "Interval": 10**9},
    },
)


def wanted(*words: str, image: ImageFacts | None = IMAGE) -> Any:
    return describe_run(read_run(("docker", "run", *words)), image, {})


def inspected(host: dict[str, Any] | None = None, config: dict[str, Any] | None = None) -> dict[str, Any]:
    """What Docker reports of a container where nothing was asked for."""
    plain = {"NetworkMode": "default", "IpcMode": "private", "ShmSize": 67108864, "RestartPolicy": {"Name": "no"}}
    return {"HostConfig": {**plain, **(host or {})}, "Config": config or {}}


@pytest.mark.parametrize(
    ("words", "host", "config"),
    [
        ((), {}, {}),
        ((), {"NetworkMode": "bridge"}, {}),
        (("--ipc", "host"), {"IpcMode": "host"}, {}),
        (("--network", "host"), {"NetworkMode": "host"}, {}),
        (("--shm-size", "16g"), {"ShmSize": 16 << 30}, {}),
        (("--shm-size", "512m"), {"ShmSize": 512 << 20}, {}),
        (
            ("--publish", "127.0.0.1:8000:9000"),
            {"PortBindings": {"9000/tcp": [{"HostIp": "127.0.0.1", "HostPort": "8000"}]}},
            {},
        ),
        (("--publish", "[::1]:1:2"), {"PortBindings": {"2/tcp": [{"HostIp": "::1", "HostPort": "1"}]}}, {}),
        (("--publish", "0.0.0.0:1:2"), {"PortBindings": {"2/tcp": [{"HostIp": "", "HostPort": "1"}]}}, {}),
        (("--restart", "on-failure:3"), {"RestartPolicy": {"Name": "on-failure", "MaximumRetryCount": 3}}, {}),
        (("--restart", "no"), {"RestartPolicy": {"Name": "", "MaximumRetryCount": 0}}, {}),
        (("--stop-timeout", "30"), {}, {"StopTimeout": 30}),
        (("--stop-timeout", "0"), {}, {"StopTimeout": 0}),
        (("--stop-timeout", "10"), {}, {}),
        (("--gpus", "all"), {"DeviceRequests": [{"Driver": "", "Count": -1, "DeviceIDs": None}]}, {}),
        (("--gpus", "count=2"), {"DeviceRequests": [{"Count": 2, "DeviceIDs": None}]}, {}),
        (("--gpus", "driver=nvidia,2"), {"DeviceRequests": [{"Driver": "nvidia", "Count": 2}]}, {}),
        (("--gpus", "2"), {"DeviceRequests": [{"Count": 2, "DeviceIDs": []}]}, {}),
        (("--gpus", '"device=0,1"'), {"DeviceRequests": [{"Count": 0, "DeviceIDs": ["0", "1"]}]}, {}),
        (
            ("--device", "nvidia.com/gpu=all"),
            {"DeviceRequests": [{"Driver": "cdi", "DeviceIDs": ["nvidia.com/gpu=all"]}]},
            {},
        ),
        (
            ("--device", "/dev/a", "--device", "/dev/b:/dev/c:r"),
            {
                "Devices": [
                    {"PathOnHost": "/dev/b", "PathInContainer": "/dev/c", "CgroupPermissions": "r"},
                    {"PathOnHost": "/dev/a", "PathInContainer": "/dev/a", "CgroupPermissions": "rwm"},
                ]
            },
            {},
        ),
        (
            ("--ulimit", "memlock=-1", "--ulimit", "nofile=1:2"),
            {"Ulimits": [{"Name": "nofile", "Soft": 1, "Hard": 2}, {"Name": "memlock", "Soft": -1, "Hard": -1}]},
            {},
        ),
        (
            ("--security-opt", "no-new-privileges", "--security-opt", "label=disable"),
            {"SecurityOpt": ["label:disable", "no-new-privileges:true"]},
            {},
        ),
        (("--security-opt", "seccomp=/etc/profile.json"), {"SecurityOpt": ['seccomp={"a":1}']}, {}),
        (("--security-opt", "seccomp=unconfined"), {"SecurityOpt": ["seccomp=unconfined"]}, {}),
        (("--security-opt", "no-new-privileges:false"), {"SecurityOpt": ["no-new-privileges=false"]}, {}),
        (("--privileged",), {"Privileged": True}, {}),
    ],
)
def test_what_is_asked_for_is_what_docker_reports(
    words: tuple[str, ...], host: dict[str, Any], config: dict[str, Any]
) -> None:
    bare = ImageFacts("sha256:image", ())
    asked = wanted("--detach", *words, "engine:1", image=bare).options
    assert asked == inspected_options(inspected(host, config))
    if words and host.get("RestartPolicy", {}).get("Name") != "" and words != ("--stop-timeout", "10"):
        assert asked != inspected_options(inspected()), "the test must be able to fail"


@pytest.mark.parametrize(
    "host",
    [
        {"CapAdd": ["SYS_PTRACE"]},
        {"Memory": 1 << 30},
        {"NanoCpus": 10**9},
        {"CpusetCpus": "0-3"},
        {"PidMode": "host"},
        {"ReadonlyRootfs": True},
        {"CapDrop": ["ALL"]},
    ],
)
def test_what_deploy_never_asks_for_is_seen_all_the_same(host: dict[str, Any]) -> None:
    assert inspected_options(inspected(host)) != inspected_options(inspected())


def test_security_options_are_told_apart() -> None:
    values = ("label=disable", "seccomp=unconfined", "seccomp=/a.json", "no-new-privileges", "no-new-privileges=false")
    assert [security([value]) for value in values] == [
        *("label=disable", "seccomp=unconfined", "seccomp=a profile", "no-new-privileges", "no-new-privileges=false")
    ]


def test_a_health_check_is_compared_without_the_words_of_its_command() -> None:
    words = ("--health-cmd", "curl -H token", "--health-interval", "30s", "--health-timeout", "5s")
    more = ("--health-retries", "3", "--health-start-period", "900s", "engine:1")
    asked = wanted(*words, *more).options["healthcheck"]
    test = {"Test": ["CMD-SHELL", "curl -H token"], "Interval": 30 * 10**9, "Timeout": 5 * 10**9, "Retries": 3}
    reported = inspected(config={"Healthcheck": {**test, "StartPeriod": 900 * 10**9}})
    assert inspected_options(reported)["healthcheck"] == asked
    assert "token" not in asked
    assert inspected_options(inspected(config={"Healthcheck": test}))["healthcheck"] != asked
    assert asked.endswith(" every 30 s, for 5 s, 3 times, after 900 s")
    assert wanted("engine:1").options["healthcheck"].endswith("every 1 s, for 0 s, 0 times, after 0 s")


@pytest.mark.parametrize(
    ("words", "argv"),
    [
        (("engine:1",), ("vllm", "serve", "--help")),
        (("engine:1", "/model"), ("vllm", "serve", "/model")),
        (("--entrypoint", "sh", "engine:1", "-c", "x"), ("sh", "-c", "x")),
        (("--entrypoint", "sh", "engine:1"), ("sh",)),
    ],
)
def test_the_command_is_what_docker_makes_of_entrypoint_and_words(
    words: tuple[str, ...], argv: tuple[str, ...]
) -> None:
    assert wanted(*words).argv == argv


def test_without_its_image_only_the_command_line_counts() -> None:
    found = wanted("--env", "A=1", "engine:1", "/model", image=None)
    assert (found.image, found.image_name, found.argv) == ("", "engine:1", ())
    assert set(found.env) == {"A"}
    assert wanted("--entrypoint", "vllm", "engine:1", "serve", image=None).argv == ("vllm", "serve")


def test_variables_of_the_image_stay_under_those_of_the_command_line() -> None:
    env = wanted("--env", "LANG=de", "--env", "EMPTY=", "--env", "EQUAL=a=b", "engine:1").env
    assert env == {
        name: value_digest(value) for name, value in {"PATH": "/bin", "LANG": "de", "EMPTY": "", "EQUAL": "a=b"}.items()
    }


@pytest.mark.parametrize(
    ("spec", "target", "mount"),
    [
        ("type=bind,src=/a,dst=/b,readonly", "/b", MountedFrom("bind", "/a", True)),
        ("type=bind,src=/a/,dst=/b/", "/b", MountedFrom("bind", "/a", False)),
        ('type=bind,"src=/a,b",dst=/b', "/b", MountedFrom("bind", "/a,b", False)),
        ("type=volume,src=cache,dst=/root/.cache", "/root/.cache", MountedFrom("volume", "cache", False)),
    ],
)
def test_a_mount_is_read_as_docker_reads_it(spec: str, target: str, mount: MountedFrom) -> None:
    assert read_mount(spec) == (target, mount)


KNOWN = {
    *("--pull", "--name", "--label", "--mount", "--env", "--entrypoint", "--gpus", "--ipc", "--network", "--shm-size"),
    *("--publish", "--restart", "--stop-timeout", "--security-opt", "--device", "--ulimit", "--health-cmd"),
    *("--health-interval", "--health-timeout", "--health-retries", "--health-start-period", *BARE_FLAGS),
}


def test_every_flag_that_is_rendered_is_one_that_is_compared() -> None:
    rendered = set(re.findall(r'"(--[a-z-]+)"', Path(render_command.__file__).read_text()))
    assert rendered == KNOWN, "teach docker_wanted the new flag, and docker_options how Docker reports it"


class Engine:
    """A container as Docker reports it, and what the script inside says."""

    def __init__(self, attrs: dict[str, Any], output: str) -> None:
        self.attrs, self.output, self.asked = attrs, output, ""

    def inspect(self, _container_id: str) -> dict[str, Any]:
        return self.attrs

    def execute(self, _container_id: str, argv: list[str]) -> Executed:
        self.asked = argv[-1]
        return Executed(0, self.output.encode(), "")


def attributes(**changes: Any) -> dict[str, Any]:
    config = {"Env": ["PATH=/bin", "LANG=C", "HTTPS_PROXY=http://user:pass@proxy"]}
    base = {"Id": "1", "Image": "sha256:image", "Path": "vllm", "Args": ["serve"], **inspected(config=config)}
    return {**base, "Mounts": [], **changes}


ANSWER = '\nwarning\n\nshardwright-files {"files": {}, "changed": {"/x/vllm/a.py": ["ab", 1, 2.0, 3.0]}}\n'
FACTS = ContainerFacts("1", "demo", {}, "running", 0, 0, 100.0, 200.0, {})


def test_a_container_is_described_without_what_docker_adds_of_itself() -> None:
    volume = {"Type": "volume", "Name": "a" * 64, "Destination": "/var/lib", "RW": True}
    named = {"Type": "volume", "Name": "cache", "Destination": "/cache", "RW": True}
    bind = {"Type": "bind", "Source": "/data/", "Destination": "/model", "RW": False}
    engine = Engine(attributes(Mounts=[volume, named, bind]), ANSWER)
    found = running_container(engine, FACTS, wanted("engine:1"))  # type: ignore[arg-type]
    assert set(found.env) == {"PATH", "LANG"}
    assert found.mounts == {
        "/cache": MountedFrom("volume", "cache", False),
        "/model": MountedFrom("bind", "/data", True),
    }
    assert found.argv == ("vllm", "serve") and found.started_at == 200.0
    assert set(found.files) == {"/x/vllm/a.py"}
    assert '"since": 100.0' in engine.asked
    with_proxy = wanted("--env", "HTTPS_PROXY=x", "engine:1")
    assert "HTTPS_PROXY" in running_container(engine, FACTS, with_proxy).env  # type: ignore[arg-type]
    wanted_there = replace(wanted("engine:1"), mounts={"/var/lib": MountedFrom("volume", "named", False)})
    assert "/var/lib" in running_container(engine, FACTS, wanted_there).mounts  # type: ignore[arg-type]


def test_code_that_a_mount_covers_is_not_the_containers_own() -> None:
    bind = {"Type": "bind", "Source": "/overlay", "Destination": "/x/vllm", "RW": False}
    engine = Engine(attributes(Mounts=[bind]), ANSWER)
    assert running_container(engine, FACTS, wanted("engine:1")).files == {}  # type: ignore[arg-type]


def test_a_storage_driver_that_copies_the_image_makes_no_code_look_changed() -> None:
    engine = Engine(attributes(Driver="vfs"), ANSWER)
    running_container(engine, FACTS, wanted("engine:1"))  # type: ignore[arg-type]
    assert '"since": 200.0' in engine.asked


def test_a_container_that_cannot_be_looked_into_is_inconclusive_and_not_without_drift() -> None:
    from shardwright.errors import DeployError, ExitCode

    engine = Engine(attributes(), 'exec: "python3": executable file not found in $PATH')
    with pytest.raises(DeployError, match="files inside demo cannot be read") as raised:
        running_container(engine, FACTS, wanted("engine:1"))  # type: ignore[arg-type]
    assert raised.value.code == ExitCode.INCONCLUSIVE
