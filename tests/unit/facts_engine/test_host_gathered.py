"""What `deploy check` itself looks up on this machine about the files that a layout mounts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.unit.helpers import BASE, Result, write_layout

TARGET = "/usr/local/lib/python3.12/dist-packages/vllm/envs.py"


@pytest.mark.parametrize(("mode", "found"), [(0o664, 1), (0o646, 1), (0o644, 0)])
def test_a_file_over_the_engines_own_that_others_may_write_is_refused(
    cli: Callable[..., Result], tmp_path: Path, mode: int, found: int
) -> None:
    file = tmp_path / "envs.py"
    file.write_text("")
    file.chmod(mode)
    mount = f"{{source: envs.py, target: {TARGET}, readonly: true}}"
    write_layout(tmp_path, f"{BASE}container: {{ipc: host, mounts: [{mount}]}}\n")
    result = cli("check", "demo", "--json", DEPLOY_PROJECT=str(tmp_path))
    loose = result.findings("overlay-permissions")
    assert len(loose) == found
    for finding in loose:
        assert finding["verdict"] == "reject" and finding["fix"] == f"chmod -R go-w {file}"
