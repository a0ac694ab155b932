#!/bin/sh
# The gate as a plain script: for any CI, and for your own machine. Copy it into your project; the templates for GitHub and
# GitLab call it. It judges the contracts on one kind of device, writes every kind of report, and says what it could not judge.
#
#   sh ci/gate.sh [PYTEST ARGUMENT ...]
#
#   AMPCHECK_DEVICE   cpu (default) or cuda
#   AMPCHECK_AGAINST  a revision: what it already did wrong does not fail, what got worse does (empty: every fault fails)
#   AMPCHECK_REPORTS  folder of the reports (default ampcheck-reports)
#   PYTHON            the interpreter that has your project, torch and ampcheck (default python3)
#
# Exit code: pytest's. 0 nothing is wrong, 1 something is, 5 there is no contract; 2 to 4 pytest itself could not go on.
set -eu

device=${AMPCHECK_DEVICE:-cpu}
base=${AMPCHECK_AGAINST:-}
reports=${AMPCHECK_REPORTS:-ampcheck-reports}
python=${PYTHON:-python3}

# Deterministic matrix products on a GPU, so that exact checks are exact; read when CUDA starts.
CUBLAS_WORKSPACE_CONFIG=${CUBLAS_WORKSPACE_CONFIG:-:4096:8}
export CUBLAS_WORKSPACE_CONFIG

mkdir -p "$reports"
if [ -n "$base" ]; then
  set -- --ampcheck-against "$base" "$@"
fi
status=0
"$python" -m pytest --ampcheck-only --ampcheck-device "$device" --ampcheck-require judged \
  --ampcheck-json "$reports/$device.json" --ampcheck-html "$reports/$device.html" \
  --ampcheck-markdown "$reports/$device.md" --ampcheck-sarif "$reports/$device.sarif" \
  --junitxml "$reports/$device.xml" "$@" || status=$?

# A green lane has judged only what this device can: say what is left to another one.
if [ -f "$reports/$device.json" ]; then
  "$python" -m ampcheck.report.unjudged "$reports/$device.json"
fi
exit "$status"
