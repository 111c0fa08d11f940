#!/usr/bin/env bash
# One layout from check to stop, with a real vLLM on this CPU: two pipeline stages, split by hand, with one patch.
# The engine is stopped however this ends.
#
# usage: make demo      (which installs the engine first)
set -euo pipefail
cd "$(dirname "$0")/.."

layout=tiny-cpu-pp2
PATH="$(cd "${VENV:-.venv}/bin" && pwd):$PATH"
export PATH
# A model that is asked to go on with a repeated line repeats it for ever: the probe must say so.
loop_prompt="lamp stone river lamp stone river lamp stone river lamp stone river"

started=
summary=()

finish() {
    local status=$?
    trap - EXIT INT TERM
    if [ -n "$started" ]; then
        printf '\n'
        deploy stop "$layout" || true
    fi
    if [ "$status" != 0 ]; then
        printf '\ndemo: stopped at a step that did not do what it should (exit %s)\n' "$status" >&2
    fi
    exit "$status"
}
trap finish EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

# step STATUS TITLE COMMAND...: run a command that must exit with STATUS
step() {
    local wanted=$1 title=$2 status=0 since=$SECONDS
    shift 2
    printf '\n== %s\n$%s\n' "$title" "$(printf ' %q' "$@")"
    "$@" || status=$?
    if [ "$status" != "$wanted" ]; then
        printf 'demo: exit %s, expected %s\n' "$status" "$wanted" >&2
        exit 1
    fi
    summary+=("$(printf '%4d s  %s' $((SECONDS - since)) "$title")")
}

step 0 "every gate says yes to the layout" deploy check "$layout"
step 0 "the patched engine file is built" deploy patch build "$layout"
step 0 "the exact command line" deploy cmd "$layout"
step 0 "the engine is started" deploy start "$layout"
started=yes
step 0 "the engine answers" deploy wait "$layout"
step 0 "smoke: a few certain things" deploy smoke "$layout"
step 0 "degen: no answer loops" deploy degen "$layout"
step 2 "degen says no to a prompt that loops" \
    deploy degen "$layout" --prompt "$loop_prompt" --trials 3 --max-tokens 700
step 0 "the engine is stopped" deploy stop "$layout"
started=

printf '\n== demo: all %s steps did what they should, in %s s\n' "${#summary[@]}" "$SECONDS"
printf '%s\n' "${summary[@]}"
