"""Mounts that Docker takes without a word and that leave the engine with the wrong files."""

from __future__ import annotations

import posixpath
from collections import Counter
from collections.abc import Sequence

from shardwright.facts.engine_package import ENGINE_NAMES
from shardwright.facts.facts import Facts
from shardwright.gates.finding import Finding
from shardwright.plan.stages import Plan
from shardwright.resolve.deployment import Deployment, Mount
from shardwright.resolve.resolve import OFFICIAL_PACKAGE_ROOT

GATE = "mounts"


def check_mounts(deployment: Deployment, plan: Plan, facts: Facts) -> list[Finding]:
    """Targets are distinct, absolute, and beside the engine's package or on a file of it; sources are there."""
    if deployment.runtime != "docker":
        return []
    root = deployment.engine.package_root or OFFICIAL_PACKAGE_ROOT
    findings = _duplicates(deployment)
    # A plugin that a flag names may lie wherever it likes.
    named = frozenset(token for argument in deployment.engine_args for token in argument.tokens)
    for index, mount in enumerate(mount for mount in deployment.mounts if mount.purpose == "user"):
        given = deployment.container.mounts[index] if index < len(deployment.container.mounts) else None
        finding = _other_base(mount, root, given.base if given else None, facts)
        finding = finding or _target(mount, root, bool(given and given.asked), named)
        if finding is not None:
            findings.append(finding)
    for source in facts.host.missing:
        text = f"the mount source {source} is not there; relative sources count from {deployment.project_root}"
        why = "the container does not start: 'bind source path does not exist'"
        findings.append(Finding(GATE, "reject", text, why=why, fix="correct container.mounts"))
    return findings + _links_outside(deployment, facts)


def _duplicates(deployment: Deployment) -> list[Finding]:
    counts = Counter(_clean(mount.target) for mount in deployment.mounts)
    return [
        Finding(
            GATE,
            "reject",
            f"{target} is mounted {count} times ({_origins(deployment, target)})",
            why="Docker refuses it as 'Duplicate mount point', other tools let the last one win",
            fix="keep one; two changes to one file belong into one overlay: deploy patch build",
        )
        for target, count in counts.items()
        if count > 1
    ]


def _origins(deployment: Deployment, target: str) -> str:
    return " and ".join(str(mount.origin) for mount in deployment.mounts if _clean(mount.target) == target)


def _engine_elsewhere(target: str) -> bool:
    """Whether a path that is not below the engine's package can only be meant for it."""
    if any(f"/{packages}/vllm/" in f"{target}/" for packages in ("site-packages", "dist-packages")):
        return True
    inner = target.rpartition("/vllm/")[2]
    return target.endswith(".py") and inner != target and inner.partition("/")[0].removesuffix(".py") in ENGINE_NAMES


def _target(mount: Mount, root: str, asked: bool, named: frozenset[str]) -> Finding | None:
    target = _clean(mount.target)
    where = f"{mount.target} ({mount.origin})"
    if target == root or root.startswith(target.rstrip("/") + "/"):
        return Finding(
            GATE,
            "reject",
            f"the mount on {where} hides the engine's package {root}",
            why="the container would run without it, or with whatever lies in the mounted folder",
            fix="mount single files, or use patches:",
        )
    if target.startswith(root + "/"):
        return _inside(mount, where, asked)
    if _engine_elsewhere(target) and mount.target not in named:
        return Finding(
            GATE,
            "reject",
            f"the mount on {where} lies outside the engine's package {root}",
            why="Docker creates the path, and the engine goes on using its own file",
            fix=f"mount it below {root}, or set engine.package_root to where the image has the package",
        )
    return None


def _other_base(mount: Mount, root: str, base: str | None, facts: Facts) -> Finding | None:
    """A file over the engine's own was made from that very file, where the layout says from which."""
    relative = _clean(mount.target).removeprefix(f"{root}/")
    files = facts.engine.files if facts.engine else {}
    if base is None or relative not in files or files[relative] == base:
        return None
    found = files[relative]
    state = f"the engine has {found[:12]}" if found else "the engine has no such file"
    return Finding(
        GATE,
        "reject",
        f"{mount.source} was made from another base than {relative}: expected {base[:12]}, {state} ({mount.origin})",
        why="it brings back what the engine changed since, or imports what is gone",
        fix="make it anew from the engine's own file, best as a patch: deploy patch import",
    )


def _inside(mount: Mount, where: str, asked: bool) -> Finding:
    if not mount.readonly:
        return Finding(
            GATE,
            "reject",
            f"the mount on {where} lets the container write a file of the engine's package",
            why="a script in the container may change the host's file, and the next start runs something else",
            fix="write readonly: true",
        )
    if not asked:
        text = f"the mount on {where} covers the engine's package; it is rendered read-only"
        return Finding(GATE, "warn", text, why="nobody compared it with the image's file", fix="make it a patch")
    text = f"the mount on {where} covers the engine's package, and nobody compared it with the image's file"
    return Finding(GATE, "info", text, fix="a patch would be checked against it: deploy patch list")


def _links_outside(deployment: Deployment, facts: Facts) -> list[Finding]:
    mounts = [mount for mount in deployment.mounts if not mount.volume]
    findings = []
    for link, value in facts.host.outside:
        target = _clean(posixpath.join(posixpath.dirname(link), value))
        over = [mount for mount in mounts if _below(link, _clean(mount.source)) and link != _clean(mount.source)]
        if over and not any(_reaches(mount, link, value, target, mounts) for mount in over):
            findings.append(
                Finding(
                    GATE,
                    "reject",
                    f"{link} is a link to {target}, outside of every mount",
                    why="the host sees the files, the container finds a dead link",
                    fix=f"mount {target} at the same path too, or mount the real folder",
                )
            )
    return findings


def _reaches(over: Mount, link: str, value: str, target: str, mounts: Sequence[Mount]) -> bool:
    """Whether a link, followed inside the container, ends at what it means on the host."""
    source = _clean(over.source)
    if _below(target, source):
        return True
    inside = _clean(posixpath.join(over.target, posixpath.dirname(link[len(source) + 1 :]), value))
    return any(
        _below(inside, _clean(mount.target))
        and _clean(mount.source + inside.removeprefix(_clean(mount.target))) == target
        for mount in mounts
    )


def _below(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder.rstrip("/") + "/")


def _clean(path: str) -> str:
    return posixpath.normpath(path)


def check_overlay_permissions(deployment: Deployment, plan: Plan, facts: Facts) -> list[Finding]:
    """`overlay-permissions`: nobody but their owner may write the files that replace engine code."""
    root = deployment.engine.package_root or OFFICIAL_PACKAGE_ROOT
    ours = [] if deployment.overlay is None else [deployment.overlay.directory]
    users = [mount for mount in deployment.mounts if mount.purpose == "user"]
    ours += [mount.source for mount in users if _below(_clean(mount.target), root)]
    # A facts file names no other paths than those that it means.
    loose = [path for path in facts.host.loose if not facts.host.live or any(_below(path, place) for place in ours)]
    if not ours or not loose:
        return []
    more = f" and {len(loose) - 1} more" if len(loose) > 1 else ""
    return [
        Finding(
            "overlay-permissions",
            "reject",
            f"{loose[0]}{more}: group or others may write it",
            why="whoever can write an overlay can run code in the engine",
            fix=f"chmod -R go-w {ours[0]}",
        )
    ]
