"""Have the engine itself parse a command line, with the overlays in place and without starting it."""

from __future__ import annotations

from pathlib import Path

from shardwright.connect.docker_cli import explain, run_docker
from shardwright.errors import DeployError
from shardwright.resolve.deployment import Deployment

_TIMEOUT_S = 300
_ACCEPTED = "command line accepted"

# The parser's module moved twice between 0.28 and 0.33. Unknown variables only make the engine log a line.
_SCRIPT = f"""
import importlib, sys
words, sys.argv = sys.argv[1:], ["vllm", "serve", *sys.argv[1:]]
from vllm.utils.argparse_utils import FlexibleArgumentParser
for name in ("common", "launchers", "openai"):
    try:
        module = importlib.import_module(f"vllm.entrypoints.{{name}}.cli_args")
    except ModuleNotFoundError:
        continue
    if hasattr(module, "make_arg_parser"):
        module.make_arg_parser(FlexibleArgumentParser(prog="vllm serve")).parse_args(words)
        print("{_ACCEPTED}")
        break
"""


def parse_problem(deployment: Deployment) -> str:
    """What the engine's own parser says against the exact arguments; empty when it takes them.

    Raises DeployError when the engine cannot be asked: no image, no Docker, no interpreter, no answer in time.
    """
    words = [token for argument in deployment.engine_args for token in argument.tokens]
    returncode, stdout, stderr = _run(deployment, words)
    if returncode == 0 and _ACCEPTED in stdout:
        return ""
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    if not lines:
        raise DeployError(f"the engine gave no answer (status {returncode})")
    errors = [line for line in lines if ": error: " in line]
    return (errors or lines)[-1].removeprefix("vllm serve: error: ")


def _run(deployment: Deployment, words: list[str]) -> tuple[int, str, str]:
    if deployment.runtime == "local":
        return _run_local(deployment, words)
    engine = deployment.engine
    if not engine.image:
        raise DeployError("the layout names no engine.image", fix="set engine.image")
    overlays = [mount for mount in deployment.mounts if mount.purpose == "overlay"]
    absent = next((mount.source for mount in overlays if not Path(mount.source).exists()), None)
    if absent is not None:
        raise DeployError(f"the overlay file {absent} is not built", fix=f"deploy patch build {deployment.name}")
    mounts = [f"type=bind,src={mount.source},dst={mount.target},readonly" for mount in overlays]
    reference = f"{engine.image}@{engine.digest}" if engine.digest else engine.image
    argv = [
        *(deployment.container.tool, "run", "--rm", "--pull", "never", "--network", "none"),
        *(part for spec in mounts for part in ("--mount", spec)),
        *("--entrypoint", "python3", reference, "-P", "-c", _SCRIPT, *words),
    ]
    result = run_docker(argv)
    # 125 to 127 are Docker's own: no image, no mount source, no python3 in the image.
    if result.returncode in (125, 126, 127):
        raise explain(result.stderr)
    return result.returncode, result.stdout, result.stderr


def _run_local(deployment: Deployment, words: list[str]) -> tuple[int, str, str]:
    import os
    import subprocess

    python = deployment.engine.python or "python3"
    environment = {**os.environ, **{pair.name: pair.value for pair in deployment.env}}
    try:
        result = subprocess.run(
            [python, "-P", "-c", _SCRIPT, *words], capture_output=True, text=True, env=environment, timeout=_TIMEOUT_S
        )
    except OSError as error:
        raise DeployError(f"{python} cannot be run: {error.strerror}", fix="set engine.python in the layout") from None
    except subprocess.TimeoutExpired:
        raise DeployError(f"the engine gave no answer within {_TIMEOUT_S} s") from None
    return result.returncode, result.stdout, result.stderr
