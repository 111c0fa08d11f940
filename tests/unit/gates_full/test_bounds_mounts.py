"""Borders of mounts and of who may write them."""

from __future__ import annotations

from typing import Any

import pytest
from deployed import PACKAGE, deployed, fixes, mount, said
from msgspec.structs import replace

from shardwright.facts.facts import Facts
from shardwright.facts.host import Host
from shardwright.gates.mounts import check_mounts, check_overlay_permissions
from shardwright.layout.container import ExtraMount
from shardwright.resolve.deployment import Deployment, OverlayPlan


def extra(target: str, asked: bool) -> ExtraMount:
    return ExtraMount("/srv/x", target, True, 0, asked=asked)


def mounted(*targets: str, readonly: bool = True, asked: bool = True, **changes: Any) -> Deployment:
    container = {"mounts": tuple(extra(target, asked) for target in targets)}
    return deployed(
        mounts=tuple(mount(target, readonly=readonly) for target in targets), container=container, **changes
    )


@pytest.mark.parametrize(
    ("target", "found"),
    [
        ("/data", None),
        ("/", "reject: the mount on / (case.yaml:1) hides"),
        ("/usr/local/lib", "reject: the mount on /usr/local/lib (case.yaml:1) hides"),
        ("/usr/local/lib/", "reject: the mount on /usr/local/lib/ (case.yaml:1) hides"),
        ("/usr/local/li", None),
        (PACKAGE, f"reject: the mount on {PACKAGE} (case.yaml:1) hides"),
        (f"{PACKAGE}/", f"reject: the mount on {PACKAGE}/ (case.yaml:1) hides"),
        (f"{PACKAGE}/x/..", f"reject: the mount on {PACKAGE}/x/.. (case.yaml:1) hides"),
        (f"{PACKAGE}/envs.py", f"info: the mount on {PACKAGE}/envs.py (case.yaml:1) covers"),
        (f"{PACKAGE}/models", f"info: the mount on {PACKAGE}/models (case.yaml:1) covers"),
        (f"{PACKAGE}_other/envs", None),
        ("/opt/vllm/envs.py", "reject: the mount on /opt/vllm/envs.py (case.yaml:1) lies outside"),
        ("/opt/vllm/envs.txt", None),
        ("/opt/vllmx/envs.py", None),
        ("/work/vllm/vllm/v1/x.py", "reject: the mount on /work/vllm/vllm/v1/x.py (case.yaml:1) lies outside"),
        ("/opt/vllm/v1/x.txt", None),
        ("/opt/vllm/parsers/own.py", None),
        ("/vllm/own.py", None),
        ("/opt/v1/x.py", None),
        ("/opt/site-packages/vllm", "reject: the mount on /opt/site-packages/vllm (case.yaml:1) lies outside"),
        (
            "/usr/lib/python3/dist-packages/vllm/c/E=8.json",
            "reject: the mount on /usr/lib/python3/dist-packages/vllm/c",
        ),
        ("/opt/site-packages/vllm_plugin", None),
        ("/opt/packages/vllm", None),
    ],
)
def test_a_mount_lies_beside_the_package_or_on_a_file_of_it(target: str, found: str | None) -> None:
    texts = said(check_mounts, mounted(target))
    assert len(texts) == (found is not None)
    for text in texts:
        assert text.startswith(f"mounts {found}")
    assert said(check_mounts, mounted(target, runtime="local")) == []


def test_a_plugin_that_a_flag_names_may_lie_anywhere() -> None:
    target = "/opt/vllm/tool_parsers/own.py"
    plugin = mount(target)
    assert len(said(check_mounts, deployed(mounts=(plugin,)))) == 1
    assert said(check_mounts, deployed(f"--tool-parser-plugin {target}", mounts=(plugin,))) == []


def test_a_package_elsewhere_moves_the_border() -> None:
    root = "/opt/venv/vllm"
    assert "hides" in said(check_mounts, mounted("/opt", engine={"package_root": root}))[0]
    assert "covers" in said(check_mounts, mounted(f"{root}/envs.py", engine={"package_root": root}))[0]
    assert "hides" in said(check_mounts, mounted("/usr/local", engine={"package_root": None}))[0]


def test_a_file_of_the_package_is_mounted_read_only_and_on_purpose() -> None:
    target = f"{PACKAGE}/envs.py"
    assert said(check_mounts, mounted(target, readonly=False))[0].startswith("mounts reject: the mount on")
    (warned,) = said(check_mounts, mounted(target, asked=False))
    assert warned.startswith("mounts warn: ") and warned.endswith("it is rendered read-only")
    # The container knows of one mount only: the second was not asked for.
    both = mounted("/data", target)
    first_only = replace(both, container=replace(both.container, mounts=both.container.mounts[:1]))
    assert said(check_mounts, first_only)[0].startswith("mounts warn: ")
    assert said(check_mounts, both)[0].startswith("mounts info: ")


def test_mounts_of_our_own_are_not_judged_and_do_not_shift_those_of_the_layout() -> None:
    target = f"{PACKAGE}/envs.py"
    asked = mounted(target, asked=True)
    overlay = mount(f"{PACKAGE}/config.py", purpose="overlay")
    assert [text[:11] for text in said(check_mounts, replace(asked, mounts=(overlay, *asked.mounts)))] == [
        "mounts info"
    ]
    assert said(check_mounts, replace(asked, mounts=(overlay,))) == []


def test_one_target_is_mounted_once_however_it_is_written() -> None:
    twice = mounted("/data", "/data/", "/other", "/data/x/..")
    (found,) = said(check_mounts, twice)
    assert found == "mounts reject: /data is mounted 3 times (case.yaml:1 and case.yaml:1 and case.yaml:1)"
    (found,) = said(check_mounts, mounted("/data", "/data/"))
    assert found.startswith("mounts reject: /data is mounted 2 times")
    assert said(check_mounts, mounted("/data", "/data/x")) == []


def test_sources_are_there_and_so_is_what_they_link_to() -> None:
    missing = Facts(host=Host(missing=("a", "b")))
    assert said(check_mounts, deployed(), missing) == [
        f"mounts reject: the mount source {name} is not there; relative sources count from /p" for name in "ab"
    ]
    for link, target, dead in (
        ("/srv/x/m", "/mnt/m", True),
        ("/srv/x/m", "/srv/x/n", False),
        ("/srv/x/m", "/srv/x", False),
        ("/srv/x/m", "/srv/xy", True),
        ("/srv/y/m", "/mnt/m", False),
        ("/srv/xy/m", "/mnt/m", False),
    ):
        facts = Facts(host=Host(outside=((link, target),)))
        text = f"mounts reject: {link} is a link to {target}, outside of every mount"
        assert said(check_mounts, deployed(mounts=(mount("/data", "/srv/x/"),)), facts) == ([text] if dead else [])
    volume = replace(mount("/data", "/srv/x"), volume=True)
    dead_link = Facts(host=Host(outside=(("/srv/x/m", "/mnt/m"),)))
    assert said(check_mounts, deployed(mounts=(volume,)), dead_link) == []
    other = mount("/mnt", "/mnt")
    assert said(check_mounts, deployed(mounts=(mount("/data"), other)), dead_link) == []


@pytest.mark.parametrize(
    ("link", "value", "others", "dead"),
    [
        # Relative links are followed from where they lie.
        ("/srv/x/m", "n", (), False),
        ("/srv/x/a/m", "../n", (), False),
        ("/srv/x/m", "../y/n", (), True),
        ("/srv/x/m", "../y/n", (("/y", "/srv/y"),), False),
        ("/srv/x/m", "../y/n", (("/z", "/srv/y"),), True),
        # An absolute one ends where the container has the same path for the same folder.
        ("/srv/x/m", "/mnt/m", (("/mnt/", "/mnt"),), False),
        ("/srv/x/m", "/mnt/m", (("/mnt/m", "/mnt/m"),), False),
        ("/srv/x/m", "/mnt/m", (("/disk", "/mnt"),), True),
        ("/srv/x/m", "/mnt/m", (("/mnt", "/disk"),), True),
        ("/srv/x/m", "/mnt/m", (("/mnt/m/n", "/mnt/m/n"),), True),
        # The mount's own folder is no link below it.
        ("/srv/x", "/mnt/m", (), False),
    ],
)
def test_a_link_is_followed_as_the_container_follows_it(
    link: str, value: str, others: tuple[tuple[str, str], ...], dead: bool
) -> None:
    mounts = (mount("/data", "/srv/x"), *(mount(target, source) for target, source in others))
    found = said(check_mounts, deployed(mounts=mounts), Facts(host=Host(outside=((link, value),))))
    assert len(found) == dead
    for text in found:
        assert text.startswith(f"mounts reject: {link} is a link to /") and text.endswith("outside of every mount")


def test_a_link_deep_in_a_mount_is_followed_from_its_own_folder() -> None:
    mounts = (mount("/data/models", "/srv/x"), mount("/data/y", "/srv/y"))
    facts = Facts(host=Host(outside=(("/srv/x/a/m", "../../y/n"),)))
    assert said(check_mounts, deployed(mounts=mounts), facts) == []


def test_a_link_below_two_mounts_needs_one_that_reaches() -> None:
    both = (mount("/data", "/srv/x"), mount("/srv", "/srv"))
    facts = Facts(host=Host(outside=(("/srv/x/m", "/srv/y"),)))
    assert said(check_mounts, deployed(mounts=both), facts) == []


@pytest.mark.parametrize(
    ("loose", "live", "found"),
    [
        ((), True, None),
        (("/o/a.py",), True, "/o/a.py"),
        (("/o/a.py", "/o/b.py"), True, "/o/a.py and 1 more"),
        (("/o/a.py", "/o/b.py", "/o/c.py"), True, "/o/a.py and 2 more"),
        (("/elsewhere/a.py",), True, None),
        (("/elsewhere/a.py", "/o/b.py"), True, "/o/b.py"),
        (("/elsewhere/a.py",), False, "/elsewhere/a.py"),
        (("/other/a.py",), True, None),
        (("/o",), True, "/o"),
    ],
)
def test_nobody_else_may_write_an_overlay(loose: tuple[str, ...], live: bool, found: str | None) -> None:
    facts = Facts(host=Host(loose=loose, live=live))
    asked = deployed(overlay=OverlayPlan("/o", PACKAGE))
    text = f"overlay-permissions reject: {found}: group or others may write it"
    assert said(check_overlay_permissions, asked, facts) == ([text] if found else [])
    assert said(check_overlay_permissions, deployed(), facts) == []


@pytest.mark.parametrize(
    ("target", "loose", "live", "speaks"),
    [
        (f"{PACKAGE}/envs.py", "/srv/x", True, True),
        (f"{PACKAGE}/envs.py", "/srv/x/a", True, True),
        (f"{PACKAGE}/envs.py", "/srv/xy", True, False),
        (f"{PACKAGE}/envs.py", "/srv/xy", False, True),
        ("/data", "/srv/x", False, False),
    ],
)
def test_nobody_else_may_write_a_file_that_is_mounted_over_the_package(
    target: str, loose: str, live: bool, speaks: bool
) -> None:
    facts = Facts(host=Host(loose=(loose,), live=live))
    asked = deployed(mounts=(mount(target),))
    text = f"overlay-permissions reject: {loose}: group or others may write it"
    assert said(check_overlay_permissions, asked, facts) == ([text] if speaks else [])
    assert fixes(check_overlay_permissions, asked, facts) == (["chmod -R go-w /srv/x"] if speaks else [])
    unnamed = deployed(mounts=(mount(target),), engine={"package_root": None})
    assert said(check_overlay_permissions, unnamed, facts) == ([text] if speaks else [])
    elsewhere = deployed(mounts=(mount(target),), engine={"package_root": "/opt/vllm"})
    assert said(check_overlay_permissions, elsewhere, facts) == []
    ours = deployed(mounts=(mount(target, purpose="overlay"),))
    assert said(check_overlay_permissions, ours, facts) == []


def test_the_overlay_is_named_before_the_files_of_the_layout() -> None:
    asked = deployed(mounts=(mount(f"{PACKAGE}/envs.py"),), overlay=OverlayPlan("/o", PACKAGE))
    facts = Facts(host=Host(loose=("/o/a",), live=True))
    assert fixes(check_overlay_permissions, asked, facts) == ["chmod -R go-w /o"]
