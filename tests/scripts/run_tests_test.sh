#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# run_tests_test.sh SOURCE_DIR: the summary line of scripts/run_tests counts cases, crashes and skips, and its exit
# status is that of the tests. Uses made-up test programs that write gtest's XML the way gtest does.
set -uo pipefail
scripts=$1/scripts
root=$(mktemp -d)
trap 'rm -rf "$root"' EXIT
failed=0

program() { # NAME EXIT XML-CASES...
  local name=$1 status=$2
  shift 2
  {
    echo '#!/usr/bin/env bash'
    if [ $# -gt 0 ]; then
      echo "{ echo '<testsuites><testsuite name=\"S\">'"
      for c in "$@"; do
        case $c in
          pass) echo "echo '<testcase name=\"a\" status=\"run\" result=\"completed\" time=\"0\" />'" ;;
          skip) echo "echo '<testcase name=\"a\" status=\"run\" result=\"skipped\" time=\"0\"><skipped message=\"m\"/></testcase>'" | sed 's|><skipped|>\n<skipped|' ;;
          fail) printf '%s\n' "echo '<testcase name=\"a\" status=\"run\" result=\"completed\" time=\"0\">" \
            '<failure message="1" type=""></failure>' '<failure message="2" type=""></failure>' "</testcase>'" ;;
        esac
      done
      echo "echo '</testsuite></testsuites>'; } >\"\${GTEST_OUTPUT#xml:}$name.xml\""
    fi
    echo "exit $status"
  } >"$root/$name"
  chmod +x "$root/$name"
  echo "add_test([=[$name]=] \"$root/$name\")" >>"$root/CTestTestfile.cmake"
}
expect() { # STATUS LINE
  local out status
  out=$(FLUVIAL_TEST_JOBS=1 "$scripts/run_tests" "$root" 2>&1)
  status=$?
  if [ $status -ne "$1" ] || [ "$(tail -n 1 <<<"$out")" != "$2" ]; then
    printf 'FAILED: wanted status %s and "%s"; got %s and:\n%s\n' "$1" "$2" "$status" "$out"
    failed=1
  fi
  : >"$root/CTestTestfile.cmake"
}
: >"$root/CTestTestfile.cmake"

program good 0 pass pass skip
program plain 0
expect 0 "3 passed, 0 failed, 1 skipped"
program mixed 1 pass fail
expect 1 "1 passed, 1 failed, 0 skipped"
program crashes_after_passing 139 pass pass
program dies_at_once 1
expect 1 "2 passed, 2 failed, 0 skipped"
program only_skips 0 skip
expect 1 "0 passed, 0 failed, 1 skipped"
expect 1 "0 passed, 1 failed, 0 skipped" # no tests at all

exit $failed
