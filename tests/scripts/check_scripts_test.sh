#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# check_scripts_test.sh SOURCE_DIR: each rule of scripts/check_includes and scripts/check_rules rejects a file that
# breaks it, names that file, and accepts a clean tree.
set -uo pipefail
scripts=$1/scripts
root=$(mktemp -d)
trap 'rm -rf "$root"' EXIT
failed=0
cases=0

reset() {
  rm -rf "${root:?}/src" "${root:?}/include"
  mkdir -p "$root"/src/{base,device,ops/common,ops/norm,ops/gemm,weights,text,models,engine,server,tools} "$root/include/fluvial"
}
put() { # FILE, LINES...
  local file=$root/$1
  shift
  { echo '// SPDX-License-Identifier: Apache-2.0'; printf '%s\n' "$@"; } >"$file"
}
expect() { # accept|reject SCRIPT FILE TEXT
  cases=$((cases + 1))
  local out status
  out=$("$scripts/$2" "$root" 2>&1)
  status=$?
  if [ "$1" = accept ]; then
    if [ $status -ne 0 ] || [ -n "$out" ]; then
      echo "FAILED: $2 must accept $3, but said ($status): $out"
      failed=$((failed + 1))
    fi
  elif [ $status -ne 1 ] || [[ "$out" != *"$3"*"$4"* ]]; then
    echo "FAILED: $2 must reject $3 with '$4', but said ($status): $out"
    failed=$((failed + 1))
  fi
}
bad_include() { # FILE INCLUDE TEXT
  reset
  put "$1" "#include \"$2\""
  expect reject check_includes "$1:2" "$3"
}
good_include() {
  reset
  put "$1" "#include \"$2\""
  expect accept check_includes "$1"
}

bad_include src/base/a.cc device/device.h "base must not include device"
bad_include src/device/a.cc ops/common/backend.h "device must not include ops"
bad_include src/ops/norm/a.cc models/model.h "ops must not include models"
bad_include src/weights/a.cc ops/norm/norm.h "weights must not include ops"
bad_include src/weights/a.cc text/tokenizer.h "weights must not include text"
bad_include src/models/a.cc engine/engine.h "models must not include engine"
bad_include src/models/a.cc text/tokenizer.h "models must not include text"
bad_include src/engine/a.cc server/server.h "engine must not include server"
bad_include src/server/a.cc tools/main.h "server must not include tools"
bad_include src/ops/norm/a.cc ops/gemm/pack.h "must not see inside ops/gemm"
bad_include src/ops/norm/a.cu ops/gemm/gemm.h "must not see inside ops/gemm"
bad_include src/base/a.cc dtype.h "must name its room"
bad_include src/base/a.cc nlohmann/json.hpp "third-party headers are written <...>"
bad_include include/fluvial/a.h base/dtype.h "must stand alone"
bad_include src/device/a.cuh weights/safetensors.h "device must not include weights"
bad_include src/tools/a.cu engine/engine.h "CUDA files see"
good_include src/ops/norm/a.cc ops/gemm/gemm.h
good_include src/ops/norm/a.cu ops/common/backend.h
good_include src/ops/norm/a.cu ops/norm/norm.h
good_include src/models/a.cc weights/safetensors.h
good_include src/tools/a.cc server/server.h
good_include src/base/a.cc fluvial/status.h
good_include src/ops/norm/a.cc hwy/highway.h
good_include include/fluvial/a.h fluvial/status.h
reset
mkdir -p "$root/src/extra"
put src/extra/a.cc '#include "base/dtype.h"'
expect reject check_includes src/extra/a.cc "not in the list of rooms"

bad_rule() { # FILE TEXT LINES...
  local file=$1 text=$2
  shift 2
  reset
  put "$file" "$@"
  expect reject check_rules "$file" "$text"
}
bad_rule src/base/a.cc "neither prints" 'void F() { std::cout << 1; }'
bad_rule src/base/a.cc "neither prints" 'void F() { printf("x"); }'
bad_rule src/base/a.cc "neither prints" 'void F() { std::fprintf(stderr, "x"); }'
bad_rule src/engine/a.cc "neither prints" 'void F() { std::abort(); }'
bad_rule src/text/a.cc "neither prints" 'void F() { if (true) exit(1); }'
bad_rule src/text/a.cc "neither prints" 'void F() { ::exit(1); }'
bad_rule src/base/a.h "#pragma once" 'int F();'
bad_rule src/base/a.cc "ASCII" $'// caf\xc3\xa9'
bad_rule src/base/a.cc "absolute path" 'const char* p = "/home/me/model";'
reset
seq 601 | sed 's|^|// |' >"$root/src/base/long.cc"
sed -i '1s|.*|// SPDX-License-Identifier: Apache-2.0|' "$root/src/base/long.cc"
expect reject check_rules src/base/long.cc "601 lines"
reset
echo 'int x;' >"$root/src/base/a.cc"
expect reject check_rules src/base/a.cc:1 SPDX
reset
put src/base/a.h '#pragma once' '// printf( and std::cout in a comment' 'inline const char* kText = "exit(1)";' \
  'inline void G(char* b) { std::snprintf(b, 1, "x"); }'
put src/tools/a.cc 'void F() { std::printf("x"); }'
put src/base/a_test.cc 'void F() { std::printf("x"); }'
expect accept check_rules "a clean tree"

echo "$((cases - failed)) of $cases cases passed"
[ $failed -eq 0 ]
