#!/usr/bin/env bash
# Installs what building and testing MegaMLA needs and this machine lacks. Does nothing where all is there.
# Usage: scripts/bootstrap.sh [--lint] [--checks] [--python] [--aarch64]
#   --lint    adds clang-format and clang-tidy
#   --checks  adds what fuzzing, ThreadSanitizer and memcheck need
#   --python  adds what building the Python package needs
#   --aarch64 adds what cross-building for 64-bit ARM and running that here need
set -euo pipefail

build_packages=(g++ make cmake ninja-build ccache pkg-config python3
  libdnnl-dev libhwy-dev libfmt-dev nlohmann-json3-dev libcli11-dev libgtest-dev)
# libomp-dev: the omp.h that clang's tools read.
lint_packages=(git clang-format clang-tidy libomp-dev)

# llvm: the symbolizer, for reports that name lines.
check_packages=(clang libclang-rt-dev llvm libomp-dev valgrind)

python_packages=(python3-venv)

aarch64_packages=(g++-aarch64-linux-gnu qemu-user-static mmdebstrap)

packages=("${build_packages[@]}")
for option in "$@"; do
  case $option in
    --lint) packages+=("${lint_packages[@]}") ;;
    --checks) packages+=("${check_packages[@]}") ;;
    --python) packages+=("${python_packages[@]}") ;;
    --aarch64) packages+=("${aarch64_packages[@]}") ;;
    *) echo "bootstrap: expected --lint, --checks, --python or --aarch64, got $option" >&2 && exit 2 ;;
  esac
done

if ! command -v dpkg-query >/dev/null || ! command -v apt-get >/dev/null; then
  # Elsewhere CMake says what it does not find; this names all of it at once.
  cat >&2 <<MESSAGE
bootstrap: this machine has no apt, so nothing is installed here. MegaMLA needs, under your distribution's names:
  a C++20 compiler (GCC 12 or newer), make, CMake 3.25 or newer, pkg-config, Python 3; ninja and ccache if you like
  oneDNN 2.6 or newer, Highway 1.0.3 or newer, fmt 9, nlohmann-json 3.11, CLI11 2, GoogleTest 1.12
  (Debian's packages: ${packages[*]})
With these in place, build with: cmake --preset release && cmake --build --preset release
Set MEGAMLA_NO_BOOTSTRAP=1 to use make without this check.
MESSAGE
  exit 1
fi

missing=()
for package in "${packages[@]}"; do
  # pkg-config is a virtual name of pkgconf on newer releases, so a command that is there counts.
  if [ "$package" = pkg-config ] && command -v pkg-config >/dev/null; then continue; fi
  status=$(dpkg-query -W -f='${Status}' "$package" 2>/dev/null || true)
  [ "$status" = "install ok installed" ] || missing+=("$package")
done
[ ${#missing[@]} -gt 0 ] || exit 0

as_root=()
if [ "$(id -u)" -ne 0 ]; then
  if ! command -v sudo >/dev/null; then
    echo "bootstrap: expected root or sudo to install packages, found neither; as root: apt-get install ${missing[*]}" >&2
    exit 1
  fi
  as_root=(sudo)
fi
echo "bootstrap: installing ${missing[*]}"
"${as_root[@]}" apt-get update -q
"${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends "${missing[@]}"
