"""Odd tensor parallelism on a GPU: MXFP4 experts and padded attention, eager and in a replayed graph."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.gpu


def test_three_padded_ranks_compute_what_one_computes(tmp_path: Path):
    torch = pytest.importorskip("torch")
    pytest.importorskip("triton")
    if not torch.cuda.is_available():
        pytest.skip("no NVIDIA GPU")
    out = tmp_path / "found.json"
    script = Path(__file__).with_name("virtual_tp.py")
    done = subprocess.run([sys.executable, str(script), "--out", str(out)], capture_output=True, text=True, timeout=600)
    assert out.is_file(), done.stderr[-3000:]
    assert json.loads(out.read_text())["faults"] == []
