from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from served import engine

from shardwright.probes.wire import Endpoint


@pytest.fixture(scope="session")
def tiny_server(project_root: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Endpoint]:
    """The small trained model on one CPU worker, started once for all modules that ask it."""
    model = project_root / "configs/models/needle-tiny"
    with engine(model, tmp_path_factory.mktemp("tiny") / "log") as endpoint:
        yield endpoint
