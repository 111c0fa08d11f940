"""Borders of secrets in sight and of foreign code."""

from __future__ import annotations

import json

import pytest
from deployed import deployed, fixes, said

from shardwright.gates.secret_texts import looks_secret, names_secret
from shardwright.gates.security import check_remote_code, check_secrets
from shardwright.layout.container import Healthcheck
from shardwright.layout.schema import Model
from shardwright.resolve.deployment import Deployment

STARTS = {
    **dict.fromkeys(("hf_", "sk-", "ghp_", "gho_", "ghu_", "ghs_", "ghr_", "github_pat_", "nvapi-", "api_org_"), 20),
    **dict.fromkeys(("gsk_", "dckr_pat_", "hvs."), 20),
    **dict.fromkeys(("AKIA", "ASIA", "glpat-"), 16),
    **dict.fromkeys(("xoxb-", "xoxp-", "xoxa-"), 10),
    **dict.fromkeys(("AIza", "npm_"), 30),
}


@pytest.mark.parametrize(("start", "least"), STARTS.items())
def test_the_form_of_a_token_begins_and_is_long_enough(start: str, least: int) -> None:
    body = "A1" * 20
    assert looks_secret(start + body[:least])
    assert not looks_secret(start + body[: least - 1])
    assert not looks_secret(start + body[: least - 1] + "!" + body)
    assert looks_secret(f"x={start}{body[:least]}!")
    for before in ("a", "-a", "--ab"):
        assert not looks_secret(before + start + body)
    assert looks_secret(f"{start}x {start}{body}")
    assert not looks_secret(start + "é" * 30)
    dashes = start + "a-b_" * 8
    assert looks_secret(dashes) == start.endswith(("-", "_pat_", "AIza", "hvs."))


@pytest.mark.parametrize(
    ("text", "secret"),
    [
        ("http://user:pw1@proxy:3128", True),
        ("see s3+http://u:p@h/x", True),
        ("http://user@proxy:3128", False),
        ("http://proxy:3128/a@b", False),
        ("http://user:${PASSWORD}@proxy", False),
        ("http://user:<password>@proxy", False),
        ("Authorization: Bearer abcd.1234", True),
        ("authorization=BEARER abcd1234", True),
        ("bearer abcd123", False),
        ("Bearer $VLLM_API_KEY", False),
        ("bearer of good news", False),
        ("Authorization: Basic dXNlcjpwdw==", True),
        ("a basic instruction", False),
        ("https://h/m?X-Amz-Signature=0123456789", True),
        ("https://h/m?a=1&sig=0123abcd", True),
        ("https://h/m?access_token=0123abcd", True),
        ("https://h/m?sig=0123abc", False),
        ("https://h/m?token=$TOKEN_OF_MINE", False),
        ("https://h/m?design=0123abcd", False),
        ("-----BEGIN RSA PRIVATE KEY-----", True),
        ("-----BEGIN PUBLIC KEY-----", False),
        ("eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.c2ln", True),
        ("eyJhbGciOiJIUzI1NiJ9", False),
    ],
)
def test_the_shape_of_a_password_or_a_signed_address_is_seen(text: str, secret: bool) -> None:
    assert looks_secret(text) == secret


@pytest.mark.parametrize(
    ("name", "value", "secret"),
    [
        ("HF_TOKEN_2", "abc", True),
        ("HF_TOKEN2", "abc", True),
        ("x-api-key", "abc", True),
        ("HF_TOKEN_PATH", "abc", False),
        ("PWD", "/srv/work", False),
        ("OLDPWD", "/srv/work", False),
        ("DB_PWD", "abc", True),
        ("COMPASS", "abc", False),
        ("MAX_TOKEN", "4096", False),
        ("DB_PASSWORD", "4096", True),
        ("HF_TOKEN", "/run/secrets/hf", False),
        ("HF_TOKEN", "/abc", True),
        ("GOOGLE_APPLICATION_CREDENTIALS", "/srv/key.json", False),
        ("GOOGLE_APPLICATION_CREDENTIALS", "~/key.json", False),
        ("GOOGLE_APPLICATION_CREDENTIALS", "abc", True),
        ("DB_PASSWORD", "/abc", True),
        *(("OPENAI_API_KEY", value, False) for value in ("EMPTY", "none", " Null ", "0", "1", "dummy")),
        *(("OPENAI_API_KEY", value, False) for value in ("true", "false", "yes", "no", "on", "off")),
    ],
)
def test_a_name_is_a_secret_only_where_it_holds_one(name: str, value: str, secret: bool) -> None:
    assert names_secret(name, value) == secret


WORDS = [
    *("TOKEN", "API_KEY", "APIKEY", "SECRET", "PASSWORD", "PASSWD", "CREDENTIAL", "CREDENTIALS", "ACCESS_KEY"),
    *("SECRET_KEY", "PRIVATE_KEY", "SIGNING_KEY", "ENCRYPTION_KEY", "AUTH_KEY", "ACCOUNT_KEY", "STORAGE_KEY"),
    *("PASSPHRASE", "PASS", "AUTHORIZATION"),
]


@pytest.mark.parametrize("word", WORDS)
def test_a_variable_that_is_called_a_secret_holds_no_value(word: str) -> None:
    for name in (word, f"MY_{word}", f"my_{word.lower()}"):
        asked = deployed(env={name: "value"})
        assert said(check_secrets, asked) == [f"secrets reject: env {name} carries a secret (case.yaml:1)"]
        assert fixes(check_secrets, asked) == [
            f"take it out, write secrets: [{name}], and export {name} before deploy start"
        ]
        for reference in ("", "${OTHER}", "<given at start>"):
            assert said(check_secrets, deployed(env={name: reference})) == []
    for name in (f"MY{word}S", f"{word}_FILE"):
        assert said(check_secrets, deployed(env={name: "value"})) == []


@pytest.mark.parametrize(
    ("flag", "variable", "found"),
    [
        ("--api-key anything", "VLLM_API_KEY", True),
        ("--hf-token anything", "HF_TOKEN", True),
        ("--api-key", "VLLM_API_KEY", False),
        ("--name anything", "HF_TOKEN", False),
        ("--name x hf_" + "A1" * 10, "HF_TOKEN", True),
    ],
)
def test_flags_carry_no_secret(flag: str, variable: str, found: bool) -> None:
    asked = deployed(flag)
    name = flag.split()[0]
    assert said(check_secrets, asked) == ([f"secrets reject: {name} carries a secret (case.yaml:1)"] if found else [])
    assert [f"secrets: [{variable}]" in fix for fix in fixes(check_secrets, asked)] == [True] * found


def test_a_script_carries_no_secret_either() -> None:
    secret = "hf_" + "A1" * 10
    found = said(check_secrets, deployed(engine={"command": ("--port", secret)}))
    assert found == ["secrets reject: engine.command carries a secret"]
    assert "secrets: [HF_TOKEN]" in fixes(check_secrets, deployed(engine={"command": ("--port", secret)}))[0]
    assert said(check_secrets, deployed(engine={"command": ("--port", "8000")})) == []
    assert said(check_secrets, deployed(env={"OTHER": secret})) == [
        "secrets reject: env OTHER carries a secret (case.yaml:1)"
    ]


@pytest.mark.parametrize(
    ("config", "secret"),
    [
        ({"password": "abc"}, True),
        ({"a": {"b": [{"secret_key": "abc"}]}}, True),
        *(({f"{kind}_token": "abc"}, True) for kind in ("auth", "access", "api", "hf", "bearer", "session")),
        ({"token": "abc"}, True),
        # A tokenizer's own words.
        ({"pad_token": "[PAD]"}, False),
        ({"think_start_token": "[THINK]"}, False),
        ({"password": 5}, False),
        ({"password": "${PASSWORD}"}, False),
        ({"kv_role": "kv_both"}, False),
    ],
)
def test_a_json_flag_carries_no_secret_at_any_depth(config: dict[str, object], secret: bool) -> None:
    found = said(check_secrets, deployed("--kv-transfer-config " + json.dumps(config).replace(" ", "")))
    assert found == (["secrets reject: --kv-transfer-config carries a secret (case.yaml:1)"] if secret else [])
    assert said(check_secrets, deployed("--additional-config.x.password abc"))[0].startswith("secrets reject: --addit")
    assert said(check_secrets, deployed("--additional-config.x.size abc", "--name {password", "--name [1]")) == []


@pytest.mark.parametrize(
    ("words", "variable"),
    [
        (("--api-key", "abc"), "VLLM_API_KEY"),
        (("--api-key=abc",), "VLLM_API_KEY"),
        (("--api-key", "$KEY"), None),
        (("--api-key=$KEY",), None),
        (("--api-key",), None),
        (("bash", "-c", "exec vllm serve --hf-token 'a b' x"), "HF_TOKEN"),
        (("bash", "-c", 'exec vllm serve --hf-token "$HF_TOKEN" x'), None),
        (("bash", "-c", "DB_PASSWORD=abc exec x"), "DB_PASSWORD"),
        (("bash", "-c", "DB_PASSWORD=$PW exec x"), None),
        (("bash", "-c", "it's\n--api-key abc"), "VLLM_API_KEY"),
        (("--db-password=abc",), None),
        (("curl", "-H", "Authorization: Bearer abcd1234"), "HF_TOKEN"),
        ((), None),
    ],
)
def test_a_script_gives_no_secret_away(words: tuple[str, ...], variable: str | None) -> None:
    for key in ("entrypoint", "command"):
        asked = deployed(engine={key: words})
        assert said(check_secrets, asked) == ([f"secrets reject: engine.{key} carries a secret"] if variable else [])
        assert [f"secrets: [{variable}]" in fix for fix in fixes(check_secrets, asked)] == [True] * bool(variable)


@pytest.mark.parametrize(
    ("name", "value", "found"),
    [
        ("EXTRA_ARGS", "--api-key abc", "env EXTRA_ARGS carries a secret"),
        ("EXTRA_ARGS", "--api-key $KEY", None),
        ("EXTRA_ARGS", "-x api-key abc", None),
        # Once is enough.
        ("EXTRA_ARGS", "--api-key sk-" + "A1" * 10, "env EXTRA_ARGS carries a secret (case.yaml:1)"),
    ],
)
def test_flags_in_a_variable_give_no_secret_away(name: str, value: str, found: str | None) -> None:
    assert said(check_secrets, deployed(env={name: value})) == ([f"secrets reject: {found}"] if found else [])


def test_the_place_of_the_model_gives_no_secret_away() -> None:
    asked = deployed(model=Model("https://me:pw@h/model", None, None, None))
    assert said(check_secrets, asked) == ["secrets reject: model.path carries a secret"]
    assert "secrets: [HF_TOKEN]" in fixes(check_secrets, asked)[0]


def test_the_health_check_stands_in_sight_too() -> None:
    check = Healthcheck("curl -H 'Authorization: Bearer abcd1234' http://h", 1, 1, 1, 1)
    asked = deployed(container={"healthcheck": check})
    assert said(check_secrets, asked) == ["secrets reject: container.healthcheck carries a secret"]


@pytest.mark.parametrize(
    ("asked", "source"),
    [
        (deployed("--trust-remote-code"), "trust_remote_code"),
        (deployed('--hf-overrides {"a":[{"trust_remote_code":true}]}'), "trust_remote_code in --hf-overrides"),
        (deployed('--hf-overrides {"a":{"trust_remote_code":false}}'), None),
        (deployed(engine={"command": ("serve", "--trust_remote_code")}), "trust_remote_code in engine.command"),
        (deployed(engine={"command": ("serve", "--trust-remote-code=true")}), "trust_remote_code in engine.command"),
        (
            deployed(engine={"entrypoint": ("sh", "-c", "x --trust-remote-code y")}),
            "trust_remote_code in engine.entryp",
        ),
        (deployed(engine={"entrypoint": ("sh", "-c", "x --no-trust-remote-code")}), None),
        (deployed(env={"TRUST_REMOTE_CODE": "True"}), "TRUST_REMOTE_CODE=True"),
        (deployed(env={"HF_TRUST_REMOTE_CODE": "1"}), "HF_TRUST_REMOTE_CODE=1"),
        (deployed(env={"TRUST_REMOTE_CODE": "yes"}), "TRUST_REMOTE_CODE=yes"),
        (deployed(env={"TRUST_REMOTE_CODE": "on"}), "TRUST_REMOTE_CODE=on"),
        (deployed(env={"TRUST_REMOTE_CODE": "0"}), None),
        (deployed(env={"TRUST_REMOTE": "1"}), None),
        (deployed(env={"EXTRA_ARGS": "--trust-remote-code --seed 1"}), "trust_remote_code in env EXTRA_ARGS"),
    ],
)
def test_foreign_code_is_seen_whoever_lets_it_in(asked: Deployment, source: str | None) -> None:
    found = said(check_remote_code, asked)
    assert len(found) == (source is not None)
    for text in found:
        assert text.startswith(f"remote-code reject: {source}")


@pytest.mark.parametrize(
    ("flags", "waivers", "verdict"),
    [
        ((), (), None),
        (("--no-trust-remote-code",), (), None),
        (("--trust-remote-code",), (), "reject"),
        (("--trust-remote-code",), ("other",), "reject"),
        (("--trust-remote-code",), ("trust-remote-code",), "info"),
        (("--trust-remote-code", "--no-trust-remote-code"), (), None),
    ],
)
def test_code_of_the_checkpoint_needs_a_named_allowance(
    flags: tuple[str, ...], waivers: tuple[str, ...], verdict: str | None
) -> None:
    found = said(check_remote_code, deployed(*flags, waivers=waivers))
    assert [text.split(":")[0] for text in found] == ([f"remote-code {verdict}"] if verdict else [])
