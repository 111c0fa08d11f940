"""`image-reference`: the image is the one that is meant, and will still be the same tomorrow."""

from __future__ import annotations

from shardwright.facts.engine_tables import release
from shardwright.facts.facts import Facts
from shardwright.gates.finding import Finding
from shardwright.plan.stages import Plan
from shardwright.resolve.deployment import Deployment

GATE = "image-reference"

_MOVING = frozenset(("latest", "nightly", "main", "master", "dev", "edge", "canary", "stable"))
# Images whose tag is the engine's version.
_OFFICIAL = "vllm-openai"


def check_image_reference(deployment: Deployment, plan: Plan, facts: Facts) -> list[Finding]:
    if deployment.runtime != "docker" or not deployment.engine.image:
        return []
    seen = facts.engine is not None and facts.engine.seen
    return [
        *([] if seen else _version(deployment, deployment.engine.image)),
        *_digest(deployment, deployment.engine.image),
    ]


def _version(deployment: Deployment, image: str) -> list[Finding]:
    """The tag of an official image names the version that the layout names, by which all else is judged."""
    name, tag = _parts(image)
    tagged, asked = release(tag.removeprefix("v").partition("-")[0]), release(deployment.engine.vllm)
    if name.rpartition("/")[2] != _OFFICIAL or tagged is None or asked is None or tagged == asked:
        return []
    text = f"the image {image} holds vLLM {tagged}, and engine.vllm says {deployment.engine.vllm}"
    why = "flags, patches and limits are judged by engine.vllm, and the image runs another engine"
    return [Finding(GATE, "reject", text, why=why, fix=f'write engine: {{vllm: "{tagged}"}}, or the other image')]


def _digest(deployment: Deployment, image: str) -> list[Finding]:
    inside, asked = image.partition("@")[2], deployment.engine.digest
    if inside and asked and inside != asked:
        text = f"the image {image} has another digest than engine.digest {asked}"
        return [Finding(GATE, "reject", text, fix="keep the one that is meant, as engine.digest")]
    if inside or asked:
        return []
    name, tag = _parts(image)
    fix = f"docker image inspect --format '{{{{.RepoDigests}}}}' {image}, and write it as engine.digest"
    moving = not _MOVING.isdisjoint(tag.replace("_", "-").split("-"))
    if moving and deployment.patches:
        text = f"the image {image} moves, and patches are made for one state of it"
        why = "the next pull brings other files, and the overlay would cover them with old ones"
        return [Finding(GATE, "reject", text, why=why, fix=fix)]
    # A name without a slash is an image of this host alone.
    if moving and "/" in name:
        text = f"the image {image} is named by a tag that moves or is purged"
        return [Finding(GATE, "warn", text, why="tomorrow it is another image or none", fix=fix)]
    return [Finding(GATE, "info", f"the image {image} is named by tag, without a digest", fix=fix)]


def _parts(image: str) -> tuple[str, str]:
    """Name and tag of `registry:5000/name:tag@digest`; the tag is `latest` where none is given."""
    reference = image.partition("@")[0]
    last = reference.rpartition("/")[2]
    tag = last.partition(":")[2]
    return reference.removesuffix(f":{tag}") if tag else reference, tag or "latest"
