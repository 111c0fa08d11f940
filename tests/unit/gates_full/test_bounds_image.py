"""Borders of how an image is named."""

from __future__ import annotations

import pytest
from deployed import deployed, fixes, said, shipped

from shardwright.facts.engine import EngineFacts
from shardwright.facts.facts import Facts
from shardwright.gates.image import check_image_reference


@pytest.mark.parametrize(
    ("image", "verdict"),
    [
        ("org/vllm:latest", "warn"),
        ("org/vllm", "warn"),
        ("org/vllm:nightly", "warn"),
        ("org/vllm:nightly-0a1b2c", "warn"),
        ("org/vllm:main", "warn"),
        ("org/vllm:dev", "warn"),
        ("org/vllm:edge", "warn"),
        ("org/vllm:devel", "info"),
        ("org/vllm:cu130-nightly", "warn"),
        ("org/vllm:v1_stable", "warn"),
        ("org/vllm:0.31.0.dev12", "info"),
        *((f"org/vllm:{word}", "warn") for word in ("master", "canary", "stable")),
        ("host:5000/vllm:v1", "info"),
        ("org/vllm:v0.30.0", "info"),
        ("host:5000/vllm:edge", "warn"),
        ("host:5000/vllm", "warn"),
        ("vllm:latest", "info"),
        ("vllm", "info"),
        ("org/vllm@sha256:" + "0" * 64, None),
        ("", None),
        (None, None),
    ],
)
def test_an_image_by_a_tag_that_moves_is_not_the_same_tomorrow(image: str | None, verdict: str | None) -> None:
    found = said(check_image_reference, deployed(engine={"image": image}))
    assert [text.split(":")[0] for text in found] == ([f"image-reference {verdict}"] if verdict else [])
    same = (image or "").partition("@")[2] or "sha256:0"
    assert said(check_image_reference, deployed(engine={"image": image, "digest": same})) == []
    assert said(check_image_reference, deployed(engine={"image": image}, runtime="local")) == []


@pytest.mark.parametrize(("tag", "verdict"), [("latest", "reject"), ("v1", "info")])
def test_patches_are_made_for_one_state_of_an_image(tag: str, verdict: str) -> None:
    for name in ("vllm", "org/vllm"):
        (found,) = said(
            check_image_reference, deployed(engine={"image": f"{name}:{tag}"}, patches=shipped("pp-cpu-eager"))
        )
        assert found.startswith(f"image-reference {verdict}: the image {name}:{tag} ")


def test_one_image_has_one_digest() -> None:
    engine = {"image": "org/vllm@sha256:1", "digest": "sha256:2"}
    assert said(check_image_reference, deployed(engine=engine)) == [
        "image-reference reject: the image org/vllm@sha256:1 has another digest than engine.digest sha256:2"
    ]


@pytest.mark.parametrize(
    ("image", "version", "tagged"),
    [
        ("vllm/vllm-openai:v0.28.0", "0.30.0", "0.28.0"),
        ("host:5000/team/vllm-openai:0.28", "0.30.0", "0.28.0"),
        ("vllm/vllm-openai:v0.28.0-cu129", "0.30.0", "0.28.0"),
        ("vllm/vllm-openai:v0.28.0@sha256:0", "0.30.0", "0.28.0"),
        ("vllm/vllm-openai:v0.30.0", "0.30", None),
        ("vllm/vllm-openai:v0.30.0", "0.30.0+cu129", None),
        ("vllm/vllm-openai:v0.6.6.post1", "0.6.6.post1", None),
        ("vllm/vllm-openai:v0.28.0", "0.6.6.post1", None),
        ("vllm/vllm-openai:glm51", "0.30.0", None),
        ("org/engine:v0.28.0", "0.30.0", None),
    ],
)
def test_an_official_image_is_of_the_version_that_the_layout_names(
    image: str, version: str, tagged: str | None
) -> None:
    asked = deployed(engine={"image": image, "vllm": version, "digest": (image.partition("@")[2] or "sha256:0")})
    found = said(check_image_reference, asked)
    text = f"image-reference reject: the image {image} holds vLLM {tagged}, and engine.vllm says {version}"
    assert found == ([text] if tagged else [])
    if tagged:
        assert fixes(check_image_reference, asked) == [f'write engine: {{vllm: "{tagged}"}}, or the other image']
    # The version was read from the engine itself: then it is that one.
    assert said(check_image_reference, asked, Facts(engine=EngineFacts(None, seen=True))) == []
    assert said(check_image_reference, asked, Facts(engine=EngineFacts(None))) == found
