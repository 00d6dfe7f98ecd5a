#!/usr/bin/env bash
# run.sh STRATA COMMAND...: starts a server on a free port, runs COMMAND URL, ends the server; the command's exit code.
set -euo pipefail
strata=$1
shift
log=$(mktemp)
"$strata" --serve --port 0 --max-context 4096 2>"$log" &
server=$!
trap 'kill "$server" 2>/dev/null || true; wait "$server" 2>/dev/null || true; rm -f "$log"' EXIT
url=
for _ in $(seq 600); do
  url=$(sed -n 's/.* is ready at \(http:[^ ]*\).*/\1/p' "$log")
  [ -z "$url" ] || break
  kill -0 "$server" 2>/dev/null || { cat "$log"; exit 1; }
  sleep 0.05
done
[ -n "$url" ] || { echo "the server did not get ready"; cat "$log"; exit 1; }
code=0
"$@" "$url" || code=$?
exit "$code"
