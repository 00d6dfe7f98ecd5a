#!/usr/bin/env bash
# Plain curl against a Strata server: curl_test.sh URL. Exits with 77 where curl is missing.
set -euo pipefail
command -v curl >/dev/null || { echo "SKIP: curl is not installed"; exit 77; }
url=$1

fail() { echo "FAIL $1: $2"; exit 1; }
post() { curl -sS --max-time 60 "$url$1" -H 'Content-Type: application/json' -d "$2" "${@:3}"; }
expect() { # name, text, pattern
  grep -q "$3" <<<"$2" || fail "$1" "$2"
  echo "PASS $1"
}
chat='{"messages":[{"role":"user","content":"The access code for Silver Falcon is 4821. What is the access code for Silver Falcon?"}],"temperature":0,"max_tokens":24'

expect health "$(curl -sS "$url/health")" '"ok"'
expect chat "$(post /v1/chat/completions "$chat}")" 4821
expect 'one model' "$(curl -sS "$url/v1/models/tiny-glm-dsa")" '^{"id":"tiny-glm-dsa","object":"model"'
stream=$(post /v1/chat/completions "$chat,\"stream\":true}" -N)
expect 'stream ends' "$stream" '^data: \[DONE\]'
expect 'stream starts' "$stream" '"role":"assistant"'
expect schema "$(post /v1/chat/completions "$chat,\"response_format\":{\"type\":\"json_schema\",\"json_schema\":{\"name\":\"n\",\"schema\":{\"enum\":[7]}}}}")" '"content":"[^"]*7"'
expect tools "$(post /v1/chat/completions "$chat,\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\"}}]}")" '"choices"'
expect 'bad JSON' "$(post /v1/chat/completions '{' -w '%{http_code}')" 'invalid_json.*400'
expect 'wrong type' "$(post /v1/chat/completions "$chat,\"n\":\"2\"}" -w '%{http_code}')" '"param":"n".*400'
expect 'no such path' "$(curl -sS -w '%{http_code}' "$url/nowhere")" '404'
expect anthropic "$(post /v1/messages "$chat}")" '"type":"message"'
curl -sS --max-time 1 -N "$url/v1/chat/completions" -H 'Content-Type: application/json' \
  -d '{"messages":[{"role":"user","content":"Tell me a story."}],"max_tokens":3000,"ignore_eos":true,"stream":true}' >/dev/null 2>&1 || true
for _ in $(seq 100); do
  if grep -q '"running":0,"waiting":0' <<<"$(curl -sS "$url/v1/status")"; then break; fi
  sleep 0.05
done
expect 'a client that leaves frees its place' "$(curl -sS "$url/v1/status")" '"running":0,"waiting":0'
