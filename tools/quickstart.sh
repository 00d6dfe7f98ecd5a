#!/usr/bin/env bash
# Sets up, builds, and lets the shipped model find a fact in a text of some 3,000 tokens.
set -euo pipefail
cd "$(dirname "$0")/.."

tools/setup.sh
echo "building (a few minutes the first time) ..."
log=$(mktemp)
trap 'rm -f "$log"' EXIT
if ! { cmake --preset release && cmake --build --preset release --target strata -j "$(nproc)"; } >"$log" 2>&1; then
  tail -n 40 "$log" >&2
  exit 1
fi

strata=build/release/tools/strata
text=tools/examples/long.txt
question="What is the access code for Silver Falcon?"
cat <<TEXT

$text has $(wc -w <$text) words; one sentence in it names an access code.
The model attends to 256 of its tokens per step: the indexer must find the right ones.

question: $question
TEXT
printf 'answer:   '
$strata --file "$text" --prompt "$question" --temp 0 --timings --trace-selection 2>"$log"
echo
cat "$log"
cat <<TEXT

Next:
  $strata --prompt "Who are you?"
  $strata eval --context 1K,4K
  $strata plan --context 128K
TEXT
