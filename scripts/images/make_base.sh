#!/usr/bin/env bash
# Make the base image of envs/cpu.Containerfile from Debian packages, for machines that reach no container registry.
#
#   make_base.sh [IMAGE] [ENGINE]       default: localhost/longctx-base:bookworm podman
#
# Needs root and debootstrap; MIRROR names a Debian mirror other than debootstrap's own. An image of that
# name is kept as it is. About 45 s.
set -euo pipefail
image=${1:-localhost/longctx-base:bookworm}
engine=${2:-podman}
packages=ca-certificates,libgomp1,libnuma1,python3,python3-pip,python3-venv

if "$engine" image inspect "$image" >/dev/null 2>&1; then
  echo "$image is there already"
  exit 0
fi
if ! command -v debootstrap >/dev/null; then
  echo "debootstrap is not installed; install Debian's package debootstrap" >&2
  exit 1
fi
root=$(mktemp -d)
trap 'rm -rf "$root"' EXIT
if ! debootstrap --variant=minbase --include="$packages" bookworm "$root" ${MIRROR:+"$MIRROR"} >"$root.log" 2>&1; then
  tail -n 20 "$root.log" >&2
  exit 1
fi
rm -rf "$root"/var/cache/apt/* "$root"/var/lib/apt/lists/* "$root"/usr/share/{doc,locale,man} "$root.log"
tar -C "$root" -cf - . | "$engine" import --change 'CMD ["python3"]' - "$image"
