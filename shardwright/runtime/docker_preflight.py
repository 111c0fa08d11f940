"""What must be true before a container is created; each check refuses with one line and leaves nothing behind."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from shardwright.connect.docker_cli import gpu_problem, run_docker
from shardwright.connect.docker_sdk import DockerEngine, ImageFacts
from shardwright.errors import DeployError

if TYPE_CHECKING:
    from shardwright.resolve.deployment import Deployment, Mount


def check_image(engine: DockerEngine, deployment: Deployment) -> ImageFacts:
    """The image is on this host, and is the one that the digest names where the layout gives one."""
    pinned = pinned_reference(deployment)
    reference, digest = deployment.engine.image or "", deployment.engine.digest
    image = engine.image(pinned)
    if image is not None:
        return image
    other = engine.image(reference) if digest else None
    if other is None:
        raise DeployError(
            f"the image {pinned} is not on this host",
            why="start never downloads an image by itself",
            fix=f"docker pull {pinned}",
        )
    actual = ", ".join(other.digests)
    raise DeployError(
        f"the image {reference} on this host is not {digest}",
        why=f"it is {actual}" if actual else "it was built or imported on this host, so it has no published digest",
        fix=f"docker pull {pinned}, or correct engine.digest in the layout",
    )


def pinned_reference(deployment: Deployment) -> str:
    """The image by its digest where the layout gives one, else by its name."""
    reference, digest = deployment.engine.image, deployment.engine.digest
    if not reference:
        raise DeployError(f"{deployment.name} names no image", fix="set engine.image in the layout, or IMAGE")
    return f"{_repository(reference)}@{digest}" if digest else reference


def check_mount_sources(deployment: Deployment) -> None:
    """Every mounted file or folder is there; Docker itself would name only the first."""
    missing = [mount for mount in deployment.mounts if not mount.volume and not Path(mount.source).exists()]
    if not missing:
        return
    first, *others = missing
    fixes = {
        "overlay": f"deploy patch build {deployment.name}",
        "model": f"put the model there, or correct model.path ({first.origin})",
        "user": f"correct the mount ({first.origin})",
    }
    raise DeployError(
        f"the {first.purpose} mount source {first.source} does not exist",
        why=f"missing too: {', '.join(mount.source for mount in others)}" if others else "",
        fix=fixes[first.purpose],
    )


def check_mount_targets(engine: DockerEngine, image: ImageFacts, deployment: Deployment) -> None:
    """A file that is meant to cover one of the image really finds it there.

    Docker creates a missing target silently, so a wrong path leaves the image's own file in use.
    """
    covering = [mount for mount in deployment.mounts if _covers(mount)]
    if not covering:
        return
    with engine.image_files(image.id) as files:
        for mount in covering:
            found = files.stat(mount.target)
            if found is None:
                raise DeployError(
                    f"the image has nothing at {mount.target}, where {mount.source} is to be mounted",
                    why="Docker would create the path, and the engine would go on using its own file",
                    fix=_target_fix(mount, deployment),
                )
            if found.is_directory != Path(mount.source).is_dir():
                kinds = ("a directory", "a file") if found.is_directory else ("a file", "a directory")
                raise DeployError(
                    f"{mount.target} is {kinds[0]} in the image, but {mount.source} is {kinds[1]}",
                    fix=_target_fix(mount, deployment),
                )


def check_port(engine: DockerEngine, deployment: Deployment) -> None:
    """The port that the server is published on is free on this host."""
    import errno

    from shardwright.connect.processes import listen_error

    container = deployment.container
    host_network = container.network == "host"
    host, port = (
        ("0.0.0.0", container.container_port) if host_network else (container.publish_host, container.publish_port)
    )
    holder = engine.publisher(port)
    if holder:
        raise DeployError(
            f"port {port} is already published by the container {holder}",
            fix=f"docker stop {holder}, or set PORT to a free one",
        )
    error = listen_error(host, port)
    # Other refusals, such as a privileged port, bind this process and not the Docker engine.
    if error is not None and error.errno == errno.EADDRINUSE:
        raise DeployError(
            f"port {port} is in use by another process on this host",
            fix=f"ss -ltnp 'sport = :{port}', or set PORT to a free one",
        )
    if error is not None and error.errno == errno.EADDRNOTAVAIL:
        raise DeployError(
            f"this host has no address {host}",
            why="the layout publishes the server there",
            fix="correct container.publish in the layout",
        )


def check_gpus(engine: DockerEngine, image: ImageFacts, deployment: Deployment) -> None:
    """A container can be given GPUs where the layout asks for them."""
    if not deployment.container.gpus or "nvidia" in engine.info().runtimes:
        return
    # The toolkit may be set up without a registered runtime; only a try tells.
    argv = ["docker", "run", "--rm", "--pull", "never", "--network", "none", "--gpus", "all"]
    result = run_docker([*argv, "--entrypoint", "true", image.id])
    problem = gpu_problem(result.stderr) if result.returncode else None
    if problem:
        raise problem


def _covers(mount: Mount) -> bool:
    """Whether the target must be in the image. A model or a mounted folder may well be new to it, a file is not."""
    if mount.adds or mount.purpose == "model":
        return False
    return mount.purpose == "overlay" or Path(mount.source).is_file()


def _target_fix(mount: Mount, deployment: Deployment) -> str:
    if mount.purpose == "overlay":
        return f"correct engine.package_root, then: deploy patch build {deployment.name}"
    return f"correct the mount ({mount.origin})"


def _repository(reference: str) -> str:
    """The reference without digest and tag; the colon of a registry's port is no tag."""
    name = reference.partition("@")[0]
    head, colon, tail = name.rpartition(":")
    return head if colon and "/" not in tail else name
