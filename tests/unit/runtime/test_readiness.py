"""One look at a server."""

from __future__ import annotations

import pytest
from runtime_samples import HEALTH_OK, MODELS_OK, TOKEN_OK, ScriptedServer

from shardwright.connect.http import Reply
from shardwright.runtime.readiness import Verdict, look

URL = "http://127.0.0.1:8000"
CASES = [
    ({}, Verdict.LOADING),
    ({"health": Reply("broken", error="reset")}, Verdict.LOADING),
    ({"health": Reply("answered", 503)}, Verdict.DEAD),
    ({"health": Reply("answered", 404)}, Verdict.FOREIGN),
    ({"health": HEALTH_OK}, Verdict.LOADING),
    ({"health": HEALTH_OK, "models": Reply("answered", 401)}, Verdict.UNAUTHORISED),
    ({"health": HEALTH_OK, "models": Reply("answered", 404)}, Verdict.FOREIGN),
    ({"health": HEALTH_OK, "models": Reply("answered", 200, "text")}, Verdict.FOREIGN),
    ({"health": HEALTH_OK, "models": Reply("answered", 200, {"data": []})}, Verdict.WRONG_MODEL),
    ({"health": HEALTH_OK, "models": MODELS_OK, "token": Reply("timeout")}, Verdict.NO_TOKEN_YET),
    ({"health": HEALTH_OK, "models": MODELS_OK, "token": Reply("broken")}, Verdict.REQUEST_FAILED),
    ({"health": HEALTH_OK, "models": MODELS_OK, "token": Reply("answered", 500)}, Verdict.REQUEST_FAILED),
    ({"health": HEALTH_OK, "models": MODELS_OK, "token": Reply("answered", 200, [])}, Verdict.REQUEST_FAILED),
    ({"health": HEALTH_OK, "models": MODELS_OK, "token": TOKEN_OK}, Verdict.READY),
]


@pytest.mark.parametrize(("replies", "verdict"), CASES)
def test_only_a_token_of_the_right_model_is_ready(replies: dict[str, Reply], verdict: Verdict) -> None:
    assert look(ScriptedServer(**replies), URL, "needle-tiny").verdict is verdict
