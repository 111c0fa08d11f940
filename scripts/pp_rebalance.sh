#!/bin/sh
# Another pipeline split, tried against the one that runs, step by step:
#
#   scripts/pp_rebalance.sh preflight 41,37   # touches nothing
#   scripts/pp_rebalance.sh control           # asks the running split
#   scripts/pp_rebalance.sh boot 41,37        # stops it, starts the other
#   scripts/pp_rebalance.sh verify            # smoke, quality, degen, needle, speed
#   scripts/pp_rebalance.sh verdict           # both arms side by side, one verdict
#
# A thin shell over `deploy rebalance`; --layout LAYOUT and its other options are passed on.
set -eu
here=$(cd "$(dirname "$0")/.." && pwd)
case ${1:-} in
preflight | control | boot | verify | verdict) ;;
*)
    sed -n '2,10s/^# \{0,1\}//p' "$0" >&2
    exit 64
    ;;
esac
if command -v deploy >/dev/null 2>&1; then
    exec deploy rebalance "$@"
fi
exec "${here}/.venv/bin/python" "${here}/deploy.py" rebalance "$@"
