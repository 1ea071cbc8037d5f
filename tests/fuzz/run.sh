#!/bin/sh
# Fuzzes every target for some seconds each, one after the other, at low priority:
#   tests/fuzz/run.sh build/fuzz 600 [target …]
# New inputs go to <build>/fuzz-corpus/<target>; what crashes is left in <build>/fuzz-findings.
set -eu
build=$1 seconds=$2
shift 2
here=$(cd "$(dirname "$0")" && pwd)
build=$(cd "$build" && pwd)
[ $# -gt 0 ] || set -- $(cd "$here" && ls *_fuzz.cc | sed 's/_fuzz\.cc$//')
mkdir -p "$build/fuzz-findings"
status=0
for name in "$@"; do
  mkdir -p "$build/fuzz-corpus/$name"
  dictionary=
  [ ! -f "$here/$name.dict" ] || dictionary="-dict=$here/$name.dict"
  echo "== $name"
  nice -n 19 "$build/tests/${name}_fuzz" $dictionary -max_total_time="$seconds" -rss_limit_mb=512 -timeout=20 \
    -max_len=16384 -print_final_stats=1 -verbosity=0 -artifact_prefix="$build/fuzz-findings/$name-" \
    "$build/fuzz-corpus/$name" "$here/corpus/$name" || status=1
done
exit $status
