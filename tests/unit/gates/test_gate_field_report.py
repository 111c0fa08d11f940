"""The four runs of the field report: no gate is always true, and none is always false."""

from __future__ import annotations

from collections.abc import Callable

from tests.unit.helpers import Result

Cli = Callable[..., Result]
DEEP = {"PP_SIZE": "4", "TP_SIZE": "2", "PP_LAYER_PARTITION": "20,20,20,18"}


def test_default_is_not_refused(cli: Cli):
    result = cli("cmd")
    assert result.code == 0
    assert "REFUSED" not in result.err
    assert "--pipeline-parallel-size 2" in result.out
    assert "VLLM_PP_LAYER_PARTITION=41,37" in result.out


def test_pp_4_with_orphans_does_not_start_to_loop_unnoticed(cli: Cli):
    result = cli("cmd", **DEEP)
    assert (result.code, result.out) == (1, "")
    assert "REFUSED pp-dsa" in result.err
    assert "REFUSED pp-layer-partition" not in result.err
    assert "20,21,40,41,60,61" in result.err
    assert "20 %" in result.err
    assert "45 %" in result.err
    assert "18,20,20,20" in result.err, "the nearest aligned split is one of the ways out"
    assert "ALLOW_UNVERIFIED_PP=1" in result.err


def test_pp_4_is_refused_by_pp_dsa_and_not_by_pp_layer_partition(cli: Cli):
    result = cli("cmd", "--json", **DEEP)
    assert result.code == 1
    assert [finding["verdict"] for finding in result.findings("pp-dsa")] == ["reject"]
    assert result.findings("pp-layer-partition") == []
    fix = result.findings("pp-dsa")[0]["fix"]
    assert [f"({number})" in fix for number in (1, 2, 3, 4)] == [True, True, True, False]


def test_the_hatch_opens_and_says_what_to_do_afterwards(cli: Cli):
    result = cli("cmd", **DEEP, ALLOW_UNVERIFIED_PP="1")
    assert result.code == 0
    assert "--pipeline-parallel-size 4" in result.out
    assert "WARNING pp-dsa" in result.err
    assert "deploy degen" in result.err


def test_pp_1_gets_no_flag_and_no_partition(cli: Cli):
    result = cli("cmd", TP_SIZE="8", PP_SIZE="1", MAX_MODEL_LEN="352000")
    assert result.code == 0
    assert "WARNING pp-layer-partition" in result.err
    assert "--pipeline-parallel-size" not in result.out
    assert "PP_LAYER_PARTITION" not in result.out
    assert "--max-model-len 352000" in result.out
    assert "--tensor-parallel-size 8" in result.out


def test_check_agrees_with_cmd(cli: Cli):
    assert cli("check").code == 0
    refused = cli("check", **DEEP)
    assert (refused.code, "REFUSED pp-dsa" in refused.out, "glm53-tp4pp2: reject" in refused.out) == (1, True, True)
