"""What a secret looks like: by its own form, or by the name that holds it. No gate; gates ask it."""

from __future__ import annotations

# How the tokens of hubs and hosted services begin, and how many more characters they have at least; those whose start
# ends in a dash, or in one of `_DASHED`, go on with dashes and underscores too.
_STARTS = (
    *(("hf_", 20), ("api_org_", 20), ("sk-", 20), ("ghp_", 20), ("gho_", 20), ("ghu_", 20), ("ghs_", 20), ("ghr_", 20)),
    *(("github_pat_", 20), ("glpat-", 16), ("nvapi-", 20), ("AKIA", 16), ("ASIA", 16), ("AIza", 30)),
    *(("xoxb-", 10), ("xoxp-", 10), ("xoxa-", 10), ("gsk_", 20), ("dckr_pat_", 20), ("hvs.", 20), ("npm_", 30)),
)
_DASHED = ("-", "_pat_", "AIza", "hvs.")
# A word that must stand in the text, and what the text then looks like; a value that begins with $, < or { is a
# reference to be filled in.
_SHAPES = (
    ("://", r"[a-z][a-z0-9+.-]*://[^/\s:@]*:(?![$<{])[^/\s@]+@"),
    ("bearer ", r"\bbearer\s+(?![$<{])[a-z0-9._~+/=-]{8,}"),
    ("basic ", r"authorization\W{1,3}basic\s+(?![$<{])[a-z0-9+/=]{8,}"),
    ("=", r"[?&](?:[a-z_-]*(?:token|signature|secret|password|api[_-]?key)|sig)=(?![$<{])[^&\s]{8,}"),
    ("private key-----", r"-----begin [a-z ]*private key-----"),
    ("eyj", r"\beyj[a-z0-9_-]{10,}\.eyj[a-z0-9_-]{10,}\."),
)

_NAMES = (
    *("TOKEN", "API_KEY", "APIKEY", "SECRET", "PASSWORD", "PASSWD", "PASSPHRASE", "PASS", "PWD", "AUTHORIZATION"),
    *("CREDENTIAL", "CREDENTIALS", "ACCESS_KEY", "SECRET_KEY", "PRIVATE_KEY", "SIGNING_KEY", "ENCRYPTION_KEY"),
    *("AUTH_KEY", "ACCOUNT_KEY", "STORAGE_KEY"),
)
# The shell's own name for the folder that it is in.
_FOLDER = "PWD"
_PLAIN = ("", "0", "1", "true", "false", "yes", "no", "on", "off", "none", "null", "empty", "dummy")


def looks_secret(text: str) -> bool:
    """Whether a text holds something with the form of a token or a password, wherever it stands in it."""
    return any(_has_token(text, start, least) for start, least in _STARTS) or _has_shape(text.lower())


def names_secret(name: str, value: str) -> bool:
    """A name that is called a secret and holds one: no reference such as `${HF_TOKEN}`, no switch, no path."""
    upper = name.upper().replace("-", "_").rstrip("0123456789").rstrip("_")
    called = next((word for word in _NAMES if upper == word or upper.endswith(f"_{word}")), None)
    if called is None or upper == _FOLDER or value.strip().lower() in _PLAIN:
        return False
    counted = called == "TOKEN" and value.isdigit()
    path = value.startswith("/run/secrets/") or (called.startswith("CREDENTIAL") and value.startswith(("/", "~")))
    return not counted and not path and not is_reference(value)


def is_reference(value: str) -> bool:
    """`$HF_TOKEN`, `${HF_TOKEN}`, `<given at start>`: something else fills the value in."""
    return value.startswith(("$", "<"))


def _has_token(text: str, start: str, least: int) -> bool:
    at = text.find(start)
    while at >= 0:
        body = text[at + len(start) :]
        length = next((i for i, c in enumerate(body) if not _in_token(c, start.endswith(_DASHED))), len(body))
        if length >= least and not text[:at][-1:].isalnum():
            return True
        at = text.find(start, at + len(start))
    return False


def _in_token(character: str, dashed: bool) -> bool:
    return character.isascii() and (character.isalnum() or (dashed and character in "-_"))


def _has_shape(lower: str) -> bool:
    import re

    return any(word in lower and re.search(shape, lower) is not None for word, shape in _SHAPES)
