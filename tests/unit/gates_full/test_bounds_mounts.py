"""Borders of mounts, of secrets in sight and of foreign code."""

from __future__ import annotations

from typing import Any

import pytest
from deployed import PACKAGE, deployed, fixes, mount, said
from msgspec.structs import replace

from shardwright.facts.facts import Facts
from shardwright.facts.host import Host
from shardwright.gates.mounts import check_mounts, check_overlay_permissions
from shardwright.gates.security import check_remote_code, check_secrets, looks_secret
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
    ],
)
def test_a_mount_lies_beside_the_package_or_on_a_file_of_it(target: str, found: str | None) -> None:
    texts = said(check_mounts, mounted(target))
    assert len(texts) == (found is not None)
    for text in texts:
        assert text.startswith(f"mounts {found}")
    assert said(check_mounts, mounted(target, runtime="local")) == []


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
    ("loose", "live", "found"),
    [
        ((), True, None),
        (("/o/a.py",), True, "/o/a.py"),
        (("/o/a.py", "/o/b.py"), True, "/o/a.py and 1 more"),
        (("/o/a.py", "/o/b.py", "/o/c.py"), True, "/o/a.py and 2 more"),
        (("/elsewhere/a.py",), True, None),
        (("/elsewhere/a.py", "/o/b.py"), True, "/o/b.py"),
        (("/elsewhere/a.py",), False, "/elsewhere/a.py"),
    ],
)
def test_nobody_else_may_write_an_overlay(loose: tuple[str, ...], live: bool, found: str | None) -> None:
    facts = Facts(host=Host(loose=loose, live=live))
    asked = deployed(overlay=OverlayPlan("/o", PACKAGE))
    text = f"overlay-permissions reject: {found}: group or others may write it"
    assert said(check_overlay_permissions, asked, facts) == ([text] if found else [])
    assert said(check_overlay_permissions, deployed(), facts) == []


STARTS = {
    **dict.fromkeys(("hf_", "sk-", "ghp_", "gho_", "ghu_", "ghs_", "ghr_", "github_pat_", "nvapi-"), 20),
    "AKIA": 16,
    "xoxb-": 10,
    "xoxp-": 10,
    "xoxa-": 10,
}


@pytest.mark.parametrize(("start", "least"), STARTS.items())
def test_the_form_of_a_token_begins_and_is_long_enough(start: str, least: int) -> None:
    body = "A1" * 20
    assert looks_secret(start + body[:least])
    assert not looks_secret(start + body[: least - 1])
    assert not looks_secret(start + body[: least - 1] + "!" + body)
    assert looks_secret(f"x={start}{body[:least]}!")
    for before in ("a", "-a", "--ab"):
        assert not looks_secret(before + start + body)
    assert looks_secret(f"{start}x {start}{body}")
    assert not looks_secret(start + "é" * 30)
    dashes = start + "a-b_" * 5
    assert looks_secret(dashes) == start.endswith(("-", "_pat_"))


WORDS = ["TOKEN", "API_KEY", "APIKEY", "SECRET", "PASSWORD", "PASSWD", "CREDENTIAL", "CREDENTIALS", "ACCESS_KEY"]


@pytest.mark.parametrize("word", WORDS)
def test_a_variable_that_is_called_a_secret_holds_no_value(word: str) -> None:
    for name in (word, f"MY_{word}", f"my_{word.lower()}"):
        asked = deployed(env={name: "value"})
        assert said(check_secrets, asked) == [f"secrets reject: env {name} carries a secret (case.yaml:1)"]
        assert fixes(check_secrets, asked) == [
            f"take it out, write secrets: [{name}], and export {name} before deploy start"
        ]
        for reference in ("", "${OTHER}", "<given at start>"):
            assert said(check_secrets, deployed(env={name: reference})) == []
    for name in (f"MY{word}S", f"{word}_FILE"):
        assert said(check_secrets, deployed(env={name: "value"})) == []


@pytest.mark.parametrize(
    ("flag", "variable", "found"),
    [
        ("--api-key anything", "VLLM_API_KEY", True),
        ("--hf-token anything", "HF_TOKEN", True),
        ("--api-key", "VLLM_API_KEY", False),
        ("--name anything", "HF_TOKEN", False),
        ("--name x hf_" + "A1" * 10, "HF_TOKEN", True),
    ],
)
def test_flags_carry_no_secret(flag: str, variable: str, found: bool) -> None:
    asked = deployed(flag)
    name = flag.split()[0]
    assert said(check_secrets, asked) == ([f"secrets reject: {name} carries a secret (case.yaml:1)"] if found else [])
    assert [f"secrets: [{variable}]" in fix for fix in fixes(check_secrets, asked)] == [True] * found


def test_a_script_carries_no_secret_either() -> None:
    secret = "hf_" + "A1" * 10
    found = said(check_secrets, deployed(engine={"command": ("--port", secret)}))
    assert found == ["secrets reject: engine.command carries a secret"]
    assert "secrets: [HF_TOKEN]" in fixes(check_secrets, deployed(engine={"command": ("--port", secret)}))[0]
    assert said(check_secrets, deployed(engine={"command": ("--port", "8000")})) == []
    assert said(check_secrets, deployed(env={"OTHER": secret})) == [
        "secrets reject: env OTHER carries a secret (case.yaml:1)"
    ]


@pytest.mark.parametrize(
    ("flags", "waivers", "verdict"),
    [
        ((), (), None),
        (("--no-trust-remote-code",), (), None),
        (("--trust-remote-code",), (), "reject"),
        (("--trust-remote-code",), ("other",), "reject"),
        (("--trust-remote-code",), ("trust-remote-code",), "info"),
        (("--trust-remote-code", "--no-trust-remote-code"), (), None),
    ],
)
def test_code_of_the_checkpoint_needs_a_named_allowance(
    flags: tuple[str, ...], waivers: tuple[str, ...], verdict: str | None
) -> None:
    found = said(check_remote_code, deployed(*flags, waivers=waivers))
    assert [text.split(":")[0] for text in found] == ([f"remote-code {verdict}"] if verdict else [])
