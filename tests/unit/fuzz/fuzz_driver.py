"""Call the command in process with any layout, words and environment, and hold it to what it promises."""

from __future__ import annotations

import io
import os
from collections.abc import Mapping
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from unittest import mock

from hypothesis import HealthCheck, settings

from shardwright.cli.main import run
from tests.unit.helpers import Result, clean_environment

SECRETS = {"HF_TOKEN": "hf_plantedtokenvalue", "VLLM_API_KEY": "sk-plantedkeyvalue"}


def profile(examples: int) -> settings:
    """The same examples at each run, and nothing left on disk."""
    return settings(
        max_examples=examples,
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )


def call(root: Path, *words: str, environ: Mapping[str, str] | None = None) -> Result:
    """`deploy WORDS` in the project at `root`; standard output takes only what a UTF-8 terminal takes."""
    out = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")
    err = io.TextIOWrapper(io.BytesIO(), encoding="utf-8", errors="backslashreplace")
    settings = {**clean_environment(), **SECRETS, **(environ or {}), "DEPLOY_PROJECT": str(root), "PATH": str(root)}
    with mock.patch.dict(os.environ, settings, clear=True), redirect_stdout(out), redirect_stderr(err):
        code = run(list(words))
    texts = []
    for stream in (out, err):
        stream.flush()
        texts.append(stream.buffer.getvalue().decode())  # type: ignore[attr-defined]
    return Result(code, *texts)


def tokens(text: str) -> list[str]:
    return text.split()


def hold(result: Result, *places: str) -> None:
    """Exit 0, 1 or 64, no traceback, no secret; and a usage error names one of `places`."""
    text = result.out + result.err
    assert result.code in (0, 1, 64), result
    assert "Traceback (most recent call last)" not in text
    for value in SECRETS.values():
        assert value not in text
    if result.code == 64:
        assert result.out == ""
        assert result.err.startswith(("error: ", "override ", "Usage: ")), result.err[:300]
        assert any(place in result.err for place in places), result.err[:300]
