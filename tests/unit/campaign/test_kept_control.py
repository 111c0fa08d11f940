"""The trials of a layout serve as a control later, when another deployment has the cards."""

from __future__ import annotations

import json

from campaign_stage import Stage
from deploy_cli_process import Killable


def test_a_kept_control_decides_that_the_candidate_is_worse(stage: Stage, deploy: Killable) -> None:
    words = ("--trials", "24", "--json")
    file = stage.folder / "configs" / "layouts" / "stub.yaml"
    candidate = json.loads(file.read_text()) | {"name": "other", "env": {"STUB_MODE": "checkpoint-loops"}}
    (file.parent / "other.yaml").write_text(json.dumps(candidate))
    for name in ("stub", "other"):
        deploy.ok("start", name)
        deploy.ok("wait", name)
        if name == "stub":
            assert deploy("degen", "stub", *words, "--control", "other").status == 64
            assert deploy("degen", "stub", *words).status == 0
        else:
            found = deploy("degen", "other", *words, "--control", "stub")
            assert found.status == 2, found.stderr
            assert found.data["control"]["trials"] == 24
            assert found.data["p_value_vs_control"] < 0.05
        deploy.ok("stop", name)
