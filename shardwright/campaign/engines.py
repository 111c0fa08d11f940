"""Which runtime a deployment uses, and what engine it would run."""

from __future__ import annotations

from pathlib import Path

from shardwright.campaign.overlays import installed_identity
from shardwright.errors import DeployError
from shardwright.resolve.deployment import Deployment
from shardwright.runtime.base import Runtime


def runtime_of(kind: str, project_root: Path) -> Runtime:
    """The runtime called `docker` or `local`; it is reached when it is first asked."""
    if kind == "local":
        from shardwright.runtime.local import LocalRuntime

        return LocalRuntime(project_root)
    from shardwright.runtime.docker import DockerRuntime

    return DockerRuntime(str(project_root))


def engine_identity(deployment: Deployment) -> str:
    """The identity that an overlay's lock must name: the image id, or the installed package's folder."""
    if deployment.runtime == "local":
        return installed_identity(deployment)
    from shardwright.connect.docker_sdk import DockerEngine

    image = DockerEngine().image(deployment.engine.image or "")
    if image is None:
        raise DeployError(
            f"the image {deployment.engine.image} is not on this host", fix=f"docker pull {deployment.engine.image}"
        )
    return image.id
