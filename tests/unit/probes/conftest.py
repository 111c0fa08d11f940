from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest
from stub_server import StubServer


@pytest.fixture
def stub() -> Iterator[Callable[[str], StubServer]]:
    """Start a stub server in the given mode; it ends with the test."""
    with ExitStack() as stack:
        yield lambda mode="healthy": stack.enter_context(StubServer(mode))
