#!/usr/bin/env bash
# Prove that the installed AITER is this version and has what it needs.
#
#   verify_aiter.sh VERSION     a name that is no version, such as a branch's, is not compared
set -euo pipefail
wanted=$1
installed=$(python3 -c 'import importlib.metadata as m; print(m.version("amd-aiter"))')
if [[ $wanted =~ ^[0-9] && $installed != "$wanted" && $installed != "$wanted"+* ]]; then
  echo "amd-aiter $installed is installed, not $wanted" >&2
  exit 1
fi
# The base image's own packages may disagree with each other: only AITER's needs count. Its development release of
# flydsl may be replaced by a released one.
lacking=$(python3 -m pip check 2> /dev/null | grep -i '^amd-aiter' | grep -vi 'flydsl' || true)
if [ -n "$lacking" ]; then
  echo "$lacking" >&2
  exit 1
fi
python3 -c 'import aiter' 2> /tmp/aiter.err || echo "import aiter fails here, which may want a GPU: $(tail -n 1 /tmp/aiter.err)"
rm -f /tmp/aiter.err
echo "amd-aiter $installed"
