from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from served import engine

from shardwright.probes.wire import Endpoint


@pytest.fixture(scope="session")
def tiny_server(project_root: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Endpoint]:
    """The small trained model on one CPU worker, started once for all modules that ask it.

    With a tool parser and JSON without blanks: so held, a model that never saw a tool makes well-formed calls.
    """
    model = project_root / "configs/models/needle-tiny"
    options = ["--enable-auto-tool-choice", "--tool-call-parser", "hermes"]
    options += ["--structured-outputs-config", '{"backend": "xgrammar", "disable_any_whitespace": true}']
    # The parser's own format would allow blanks again.
    settings = {"VLLM_ENFORCE_STRICT_TOOL_CALLING": "0"}
    with engine(model, tmp_path_factory.mktemp("tiny") / "log", *options, settings=settings) as endpoint:
        yield endpoint
