#!/usr/bin/env bash
# Installs the build into a fresh prefix, then uses it from there as others would: C99 through pkg-config, C++ through
# find_package, the program from its bin folder. Usage: run.sh BUILD_DIR VERSION SANITIZE CMAKE CC CXX NM
set -euo pipefail
build=$1 version=$2 sanitize=$3 cmake=$4 cc=$5 cxx=$6 nm=$7
here=$(cd "$(dirname "$0")" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
prefix=$work/prefix

"$cmake" --install "$build" --prefix "$prefix" >"$work/install.log"
# Moved after the install: nothing in it may hold the path that it was installed to.
mv "$prefix" "$work/moved"
prefix=$work/moved
libdir=$(dirname "$(find "$prefix" -name 'libmegamla.*' | head -n 1)")
flags=()
[ -z "$sanitize" ] || flags=("-fsanitize=$sanitize")

echo "== every header alone, as C99 and as C++20"
for header in "$prefix"/include/megamla/*.h; do
  echo "#include <megamla/$(basename "$header")>" | "$cc" -std=c99 -pedantic -Wall -Wextra -Werror -I"$prefix/include" \
    -fsyntax-only -x c -
done
for header in "$prefix"/include/megamla/*.h*; do
  echo "#include <megamla/$(basename "$header")>" | "$cxx" -std=c++20 -pedantic -Wall -Wextra -Werror \
    -I"$prefix/include" -fsyntax-only -x c++ -
done

echo "== the library exports what the headers declare, and nothing else"
if [ -e "$libdir/libmegamla.so" ]; then
  "$nm" -D --defined-only "$libdir/libmegamla.so" | awk '{print $3}' | sort >"$work/exported"
else
  "$nm" -g --defined-only "$libdir/libmegamla.a" | awk '$3 ~ /^megamla_/ {print $3}' | sort >"$work/exported"
fi
cat "$prefix"/include/megamla/*.h | tr '\n' ' ' | grep -oE 'MEGAMLA_API [^;(]*\(' | grep -oE 'megamla_[a-z0-9_]+ *\($' |
  tr -d '( ' | sort -u >"$work/declared"
diff "$work/declared" "$work/exported" || { echo "left (<): declared only; right (>): exported only" >&2; exit 1; }

echo "== small: nothing is shipped but machine code, and nothing is compiled when it starts"
if [ -z "$sanitize" ]; then
  size=$(stat -Lc %s "$(ls "$libdir"/libmegamla.so "$libdir"/libmegamla.a 2>/dev/null | head -n 1)")
  [ "$size" -lt $((32 << 20)) ] || { echo "library: expected less than 32 MiB, got $size bytes" >&2; exit 1; }
fi

echo "== a C99 program through pkg-config"
export PKG_CONFIG_PATH=$libdir/pkgconfig
[ "$(pkg-config --modversion megamla)" = "$version" ]
static=()
[ -e "$libdir/libmegamla.so" ] || static=(--static)
# shellcheck disable=SC2046
"$cc" -std=c99 -pedantic -Wall -Wextra -Werror "${flags[@]}" "-DEXPECTED_VERSION=\"$version\"" "$here/consumer.c" \
  -o "$work/consumer_c" $(pkg-config --cflags --libs "${static[@]}" megamla) -lm
LD_LIBRARY_PATH=$libdir timeout 30 "$work/consumer_c"

echo "== a C++ program through find_package"
"$cmake" -S "$here/consumer" -B "$work/consumer" -DCMAKE_PREFIX_PATH="$prefix" -DCMAKE_CXX_COMPILER="$cxx" \
  -DCMAKE_CXX_FLAGS="${flags[*]}" >"$work/consumer.log" || { cat "$work/consumer.log" >&2; exit 1; }
"$cmake" --build "$work/consumer" >>"$work/consumer.log" || { cat "$work/consumer.log" >&2; exit 1; }
"$work/consumer/consumer"

if [ -e "$prefix/bin/megamla" ]; then
  echo "== the program"
  [[ "$("$prefix/bin/megamla" --version)" == *"$version"* ]]
fi
