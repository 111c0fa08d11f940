#!/usr/bin/env bash
# Make the virtual environment and install the project into it, editable. A second run returns at once.
#
# usage: scripts/make_venv.sh [dev]     `dev` adds what the test suite needs
# reads: VENV (default .venv), PYTHON (default: the first Python 3.11 or newer in PATH)
set -euo pipefail
cd "$(dirname "$0")/.."

venv=${VENV:-.venv}
extra=${1:-}
refuse() { printf 'venv: %s\n' "$*" >&2; exit 1; }

new_enough() { "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; }

find_python() {
    local name
    for name in ${PYTHON:-python3 python3.13 python3.12 python3.11 python}; do
        if new_enough "$name"; then
            command -v "$name"
            return
        fi
    done
    refuse "no Python 3.11 or newer found (looked for: ${PYTHON:-python3, python3.13, python3.12, python3.11}); \
install one, or run: make PYTHON=/path/to/python3.11 ..."
}

if [ ! -x "$venv/bin/python" ]; then
    python=$(find_python)
    printf 'venv: making %s with %s\n' "$venv" "$python"
    "$python" -m venv "$venv" || { rm -rf "$venv"; refuse "$python cannot make virtual environments; \
on Debian and Ubuntu: apt-get install python3-venv"; }
fi
new_enough "$venv/bin/python" || refuse "$venv has a Python older than 3.11; remove it and run this again"

stamp=$venv/.project${extra:+-$extra}
recipe=$(sha256sum pyproject.toml)
if [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$recipe" ]; then
    exit 0
fi
printf 'venv: installing the project%s\n' "${extra:+ with its $extra tools}"
"$venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-input --editable ".${extra:+[$extra]}"
printf '%s\n' "$recipe" >"$stamp"
