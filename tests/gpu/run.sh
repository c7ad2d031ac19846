#!/usr/bin/env bash
# The check on a machine with a GPU, 8 minutes at most:   tests/gpu/run.sh OUT
# Every section at a toy size on a CPU:                    tests/gpu/run.sh OUT --device cpu --small
# OUT/report.json has all numbers, OUT/report.txt is for people. Exit status: 0 when all passed, 1 when a check
# failed, 2 when there is no GPU. Needs what `trainer` needs, no network.
set -euo pipefail
if [ $# -lt 1 ]; then
  echo "usage: tests/gpu/run.sh OUT [--device cpu --small]" >&2
  exit 2
fi
mkdir -p "$1"
out=$(cd "$1" && pwd)
shift
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
export PYTHONPATH="$PWD:$PWD/tests" PYTHONUNBUFFERED=1 HF_HUB_OFFLINE=1 TOKENIZERS_PARALLELISM=false
exec "${PYTHON:-python3}" -P -m gpu "$out" "$@"
