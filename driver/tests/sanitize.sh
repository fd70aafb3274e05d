#!/bin/sh
# Builds the simulator's library with a sanitizer and runs stress.py on it.
#   sanitize.sh thread|address [python] [seconds]
# Exit 77: there is no gcc, or no runtime of that sanitizer.
set -eu
kind=$1 python=${2:-python3} seconds=${3:-5}
here=$(cd "$(dirname "$0")" && pwd)
root=$(dirname "$here")
command -v gcc >/dev/null || { echo "no gcc"; exit 77; }
case $kind in thread) name=libtsan.so flags=thread ;; *) name=libasan.so flags=address,undefined ;; esac
runtime=$(gcc -print-file-name=$name)
[ -e "$runtime" ] || { echo "no $name"; exit 77; }
build=$(mktemp -d)
trap 'rm -rf "$build"' EXIT
gcc -std=c11 -O1 -g -fsanitize=$flags -fno-omit-frame-pointer -fPIC -fvisibility=hidden -shared -pthread \
    -Wl,-soname,libcuda.so.1 -o "$build/libcuda.so" "$root"/src/nogpu/simulator/*/*.c
# glibc frees and reuses the thread-local storage of finished threads behind ThreadSanitizer's back.
printf 'race:_dl_deallocate_tls\n' >"$build/suppressions"
# ThreadSanitizer needs the address layout that it knows; the interpreter itself leaks, so leaks are not looked for.
alone=
[ "$kind" = thread ] && command -v setarch >/dev/null && alone="setarch $(uname -m) -R"
TSAN_OPTIONS="exitcode=66 suppressions=$build/suppressions" ASAN_OPTIONS="detect_leaks=0:exitcode=66" \
    NOGPU_LIBRARY="$build/libcuda.so" LD_PRELOAD="$runtime" \
    $alone "$python" "$here/stress.py" "$seconds"
