#!/bin/sh
# The built-in page in a real browser: run.sh BINARY [--screenshot FILE.png]
# Exit code: 0 all checks passed, 1 one failed, 77 the browser or node is missing. CHROMIUM names another browser.
set -eu
if [ $# -ne 1 ] && { [ $# -ne 3 ] || [ "$2" != --screenshot ]; }; then
  echo "usage: run.sh BINARY [--screenshot FILE.png]" >&2
  exit 1
fi
if ! node -e 'process.exit(Number(process.versions.node.split(".")[0]) >= 18 ? 0 : 1)' 2>/dev/null; then
  echo "skipped: node 18 or later is missing"
  exit 77
fi
browser=
for name in "${CHROMIUM:-chromium}" chromium-browser google-chrome; do
  [ -n "$browser" ] || browser=$(command -v "$name" || true)
done
if [ -z "$browser" ]; then
  echo "skipped: chromium is missing"
  exit 77
fi
exec node "$(dirname "$0")/page_test.mjs" "$browser" "$1" "${3:-}"
