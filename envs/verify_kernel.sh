#!/usr/bin/env bash
# Prove that exactly one installed AITER kernel has this name, and this content.
#
#   verify_kernel.sh KERNEL CHECKSUM [ROOT]     KERNEL is a path below AITER's hsa folder; CHECKSUM is a SHA-256 or an
#                                               MD5 in hex digits; ROOT defaults to site-packages
set -euo pipefail
kernel=$1
wanted=$2
root=${3:-$(python3 -c 'import sysconfig; print(sysconfig.get_path("purelib"))')}

if [ -z "$wanted" ]; then
  echo "no checksum was given for $kernel" >&2
  exit 1
fi
case ${#wanted} in
  64) program=sha256sum ;;
  32) program=md5sum ;;
  *)
    echo "'$wanted' is neither a SHA-256 nor an MD5 of $kernel" >&2
    exit 1
    ;;
esac
mapfile -t found < <(find "$root" -path "*/hsa/$kernel" -type f)
if [ "${#found[@]}" -ne 1 ]; then
  echo "${#found[@]} files below $root are hsa/$kernel; expected exactly one ${found[*]}" >&2
  exit 1
fi
actual=$($program "${found[0]}" | cut -d ' ' -f 1)
if [ "$actual" != "$wanted" ]; then
  echo "${found[0]} has $program $actual, not $wanted: a wrong decode kernel; a wanted one needs DECODE_KERNEL_SHA256" >&2
  exit 1
fi
echo "$kernel $actual"
