#!/usr/bin/env bash
# The arm64 packages of this distribution that MegaMLA is built against, unpacked into build/aarch64-sysroot: what
# cmake/aarch64.cmake compiles and links with, and QEMU loads libraries from. Nothing is installed from them: Debian's
# libdnnl-dev cannot be there for two architectures. Does nothing where the folder is.
set -euo pipefail
cd "$(dirname "$0")/.."
sysroot=build/aarch64-sysroot
[ ! -d $sysroot ] || exit 0
mkdir -p build
rm -rf $sysroot.part
mmdebstrap --architectures=arm64 --variant=extract \
  --include=libc6-dev,libstdc++6,libgomp1,libdnnl-dev,libhwy-dev,libfmt-dev,nlohmann-json3-dev,libcli11-dev,libgtest-dev \
  "$(. /etc/os-release && echo "$VERSION_CODENAME")" $sysroot.part
mv $sysroot.part $sysroot
