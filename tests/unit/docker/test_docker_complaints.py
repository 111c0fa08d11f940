"""What docker 20.10 to 28 and the NVIDIA container toolkit print, and what the user reads instead."""

from __future__ import annotations

import pytest

from shardwright.connect.docker_cli import CliResult, explain, gpu_problem, run_docker
from shardwright.errors import DeployError

HELP = "\n\nRun 'docker run --help' for more information"
RUNC = "failed to create shim task: OCI runtime create failed: runc create failed: unable to start container process: "
HOOK = RUNC + "error during container init: error running hook #0: error running hook: exit status 1, stderr: "
ENDPOINT = "driver failed programming external connectivity on endpoint e6 (ac4d): "

COMPLAINTS = {
    'could not select device driver "" with capabilities: [[gpu]]': "no GPU runtime",
    "Unknown runtime specified nvidia": "no runtime named nvidia",
    "unknown or invalid runtime name: nvidia": "no runtime named nvidia",
    HOOK + "nvidia-container-cli: device error: 9: unknown device: unknown": "no GPU 9",
    HOOK + "nvidia-container-cli: initialization error: nvml error: driver not loaded: unknown": "nvml error",
    'invalid mount config for type "bind": bind source path does not exist: /no/such': "/no/such does not exist",
    "No such image: no/such:1": "image no/such:1 is not on this host",
    "Unable to find image 'no/such:1' locally": "image no/such:1 is not on this host",
    RUNC + 'exec: "nosuchprog": executable file not found in $PATH: unknown': "cannot run nosuchprog",
    RUNC + 'exec: "/usr/bin": permission denied: unknown': "cannot run /usr/bin",
    RUNC + 'exec: "/no/such": stat /no/such: no such file or directory: unknown': "cannot run /no/such",
    ENDPOINT + "Error starting userland proxy: listen tcp4 127.0.0.1:18555: bind: address already in use": "port 18555",
    ENDPOINT + "Bind for 127.0.0.1:18556 failed: port is already allocated": "port 18556 is already published",
    ENDPOINT + "Error starting userland proxy: listen tcp4 192.0.2.1:80: bind: cannot assign requested address": (
        "no address 192.0.2.1"
    ),
    'Conflict. The container name "/e7" is already in use by container "38eb". You have to remove (or rename) that '
    "container to be able to reuse that name.": "container name e7 was just taken",
    RUNC + "unable to apply caps: operation not permitted: unknown": "privileged",
    RUNC + "error during container init: error setting rlimit type 8: operation not permitted: unknown": "ulimit",
    RUNC + 'error during container init: error mounting "/etc/hostname" to rootfs at "/usr/bin": mount '
    "/etc/hostname:/usr/bin (via /proc/self/fd/6), flags: 0x5001: not a directory: unknown: Are you trying to mount a "
    "directory onto a file (or vice-versa)?": "/etc/hostname cannot be mounted at /usr/bin",
    "Duplicate mount point: /a": "same target /a",
    "write /var/lib/docker/tmp/x: no space left on device": "disk of the Docker engine is full",
    "network nosuch not found": "no network nosuch",
    "Minimum memory limit allowed is 6MB": "docker refused: Minimum memory limit allowed is 6MB",
}
CLIENT_COMPLAINTS = {
    "docker: Cannot connect to the Docker daemon at unix:///var/run/docker.sock. Is the docker daemon running?": (
        "no Docker engine answers"
    ),
    "docker: permission denied while trying to connect to the Docker daemon socket at unix:///var/run/docker.sock: Get "
    '"http://%2Fvar%2Frun%2Fdocker.sock/v1.24/info": dial unix /var/run/docker.sock: connect: permission denied': (
        "may not talk to the Docker engine"
    ),
    'invalid argument "5q" for "--shm-size" flag: invalid suffix: \'q\'\n\nUsage:  docker run [OPTIONS] IMAGE': (
        'docker refused: invalid argument "5q" for "--shm-size" flag'
    ),
    "": "docker refused: no reason given",
}
ALL = {f"docker: Error response from daemon: {text}": said for text, said in COMPLAINTS.items()} | CLIENT_COMPLAINTS


@pytest.mark.parametrize(("text", "said"), ALL.items())
def test_each_complaint_becomes_one_clear_line(text: str, said: str) -> None:
    error = explain(text + HELP)
    assert said in error.what
    assert "\n" not in error.what
    assert error.fix


def test_only_complaints_about_gpus_count_as_such() -> None:
    about_gpus = {explain(text).what for text in ALL if gpu_problem(text)}
    assert about_gpus == {
        "this Docker engine has no GPU runtime",
        "this Docker engine has no runtime named nvidia",
        "this host has no GPU 9",
        "the GPUs cannot be given to a container: nvidia-container-cli: initialization error: nvml error: driver not "
        "loaded: unknown",
    }


def test_a_missing_docker_command_is_no_traceback() -> None:
    with pytest.raises(DeployError, match="no-such-docker is not installed"):
        run_docker(["no-such-docker", "ps"])


def test_outputs_and_status_are_passed_on() -> None:
    script = "echo out; echo err >&2; printf '\\377'; exit 3"
    assert run_docker(["sh", "-c", script]) == CliResult(3, "out\n\ufffd", "err")
