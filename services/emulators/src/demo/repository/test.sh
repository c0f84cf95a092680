#!/bin/sh
# Tests calc.sh. Run: sh test.sh
cd "$(dirname "$0")" || exit 2
. ./calc.sh
failed=0

# expect WANTED FUNCTION ARGUMENTS...
expect() {
    wanted=$1
    shift
    got=$("$@")
    if [ "$got" = "$wanted" ]; then
        echo "ok: $* = $got"
    else
        echo "FAILED: $* should be $wanted but is $got"
        failed=1
    fi
}

expect 5 add 2 3
expect 0 add -4 4
expect 4 divide 12 3
expect 3 divide 10 3

if [ "$failed" -ne 0 ]; then
    echo "some tests failed"
    exit 1
fi
echo "all tests passed"
