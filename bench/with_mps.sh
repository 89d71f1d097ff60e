#!/usr/bin/env bash
# Runs a command with CUDA MPS, so that its processes use a GPU at the same time:  bench/with_mps.sh mpirun -n 4 ...
# Starts a daemon of its own in a fresh folder and stops that one afterwards.
set -uo pipefail
if [ $# -eq 0 ]; then sed -n '2,3s/^# //p' "$0"; exit 2; fi
if ! command -v nvidia-cuda-mps-control > /dev/null; then
  echo "nvidia-cuda-mps-control not found: it comes with the NVIDIA driver" >&2
  exit 127
fi
folder=$(mktemp -d)
export CUDA_MPS_PIPE_DIRECTORY=$folder/pipe CUDA_MPS_LOG_DIRECTORY=$folder/log
mkdir "$CUDA_MPS_PIPE_DIRECTORY" "$CUDA_MPS_LOG_DIRECTORY"
nvidia-cuda-mps-control -d || exit 1
stop() {
  echo quit | timeout 20 nvidia-cuda-mps-control > /dev/null 2>&1
  rm -rf "$folder"
}
trap stop EXIT
"$@"
status=$?
if [ $status -ne 0 ] && [ -s "$folder/log/control.log" ]; then tail -5 "$folder/log/control.log" >&2; fi
exit $status
