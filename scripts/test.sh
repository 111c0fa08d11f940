#!/usr/bin/env bash
# Lint, types, layers and tests in the project's own virtual environment. Starts no daemon and installs no system package.
#
# usage: scripts/test.sh [PYTEST ARGUMENTS]
# reads: VENV, PYTHON, TORCH_INDEX, and REQUIRE_TIERS: names of tiers (docker vllm browser slow) that must not be skipped
set -euo pipefail
cd "$(dirname "$0")/.."

venv=${VENV:-.venv}
step() { printf '\n== %s\n' "$*"; "$@"; }

scripts/make_venv.sh dev
case " ${REQUIRE_TIERS:-} " in
    *" vllm "* | *" docker "*) "$venv/bin/python" scripts/install_cpu_engine.py --torch-index "${TORCH_INDEX:-}" ;;
esac

step "$venv/bin/ruff" check .
step "$venv/bin/ruff" format --check .
step "$venv/bin/mypy"
step "$venv/bin/lint-imports" --no-logo
# Quick tests share the cores, two on each since many of them wait. Engines, containers, browsers and measurements get
# the machine to themselves.
tiers='docker or vllm or browser or slow'
failed=0
tests() {
    local status=0
    step "$venv/bin/pytest" --durations=5 "$@" || status=$?
    if [ "$status" = 5 ]; then
        printf 'tests: none was found; a run without tests proves nothing\n' >&2
    fi
    [ "$status" = 0 ] || failed=$status
}
if [ "$#" != 0 ]; then
    tests "$@"
else
    tests -m "not ($tiers)" --numprocesses "$((2 * $(getconf _NPROCESSORS_ONLN)))" --dist loadfile
    tests -m "$tiers"
fi
exit "$failed"
