#!/usr/bin/env bash
# Everything that needs a CUDA GPU, in one go:  OUT=results bench/cuda_session.sh [PART...]
#
# Builds the package and the peers with what is installed (needs nvcc, cmake, ninja, scikit-build-core, nanobind, torch,
# mpi4py, pytest and an mpirun; nothing is downloaded), starts MPS, runs the tests and the benchmarks at 2, 4 and 8
# ranks, and leaves in $OUT: summary.txt, steps.txt, session.log, machine.txt, and results.tar.gz with all JSON files.
# Every step has a time limit, a failure does not stop the next, and after BUDGET (550) seconds all of it is over.
# FlashInfer and vLLM take part if .flashinfer holds flashinfer/data of an unpacked flashinfer-python wheel.
# Parts, by default all: build floor test variants bench fused norm symmetric sanitize
set -uo pipefail
cd "$(dirname "$0")/.."
export OUT=${OUT:-build/cuda_session} BUDGET=${BUDGET:-550} BEGAN=${BEGAN:-$(date +%s)}
export JSON=$PWD/build/cuda_json PYTHONUNBUFFERED=1
# What was tuned on this machine must not decide what is measured.
export XDG_CACHE_HOME=$PWD/build/cache
mkdir -p "$OUT" "$JSON"
log=$OUT/session.log
parts=("$@")
[ $# -eq 0 ] && parts=(build floor test variants bench fused norm symmetric sanitize)
sizes=8,6144,12288,65536,1MiB

wanted() { [[ " ${parts[*]} " == *" $1 "* ]]; }

step() {  # step NAME SECONDS COMMAND...
  local name=$1 limit=$2 began status
  shift 2
  began=$(date +%s)
  local left=$((BEGAN + BUDGET - began))
  if ((left < 15)); then
    echo "skipped  $name: the time is up" | tee -a "$OUT/steps.txt"
    return 1
  fi
  ((limit > left)) && limit=$left
  echo "=== $name: $*" >> "$log"
  timeout --kill-after=10 "$limit" "$@" >> "$log" 2>&1
  status=$?
  printf '%4d s  %-16s %s\n' $(($(date +%s) - began)) "$name" "$([ $status -eq 0 ] && echo ok || echo "FAILED ($status)")" \
    | tee -a "$OUT/steps.txt"
  tar -czf "$OUT/results.tar.gz" -C "$JSON" .
  return $status
}

ranks() {  # ranks N COMMAND...
  local options=(-n "$1")
  mpirun --version 2>&1 | grep -q "Open MPI" && options+=(--allow-run-as-root --oversubscribe --bind-to none)
  shift
  mpirun "${options[@]}" python3 "$@"
}

sizes_benchmark() {  # sizes_benchmark NAME WORLD DTYPE SIZES SECONDS BACKENDS
  ranks "$2" bench/allreduce_sizes.py --device cuda --dtypes "$3" --sizes "$4" --discipline stream --rounds 40 \
    --seconds "$5" --stall 25 --quiet --json "$JSON/$1-$2.json" --backends "$6"
}
export -f ranks sizes_benchmark

if wanted build; then
  {
    nvidia-smi --query-gpu=name,driver_version --format=csv
    nvidia-smi topo -m
    nvcc --version | tail -2
    mpirun --version | head -1
    python3 -c 'import nanobind, torch; print("torch", torch.__version__, "nanobind", nanobind.__version__)'
  } > "$OUT/machine.txt" 2>&1
  step build-peers 150 bench/native/build_cuda_peers.sh &
  step build 240 python3 -m pip install --no-build-isolation --no-deps --no-index -v -e .
  wait
  parts=("${parts[@]/build/}")
fi

if [ -z "${UNDER_MPS:-}" ] && [ -n "${parts[*]// /}" ] && command -v nvidia-cuda-mps-control > /dev/null; then
  export UNDER_MPS=1
  exec bench/with_mps.sh bench/cuda_session.sh ${parts[*]}
fi

v=lamport_xpu.bench.peers.cuda_variants
for world in 2 4 8; do
  wanted floor && step "floor-$world" 30 bash -c "ranks $world bench/cuda_floor.py --json $JSON/floor-$world.json"
  wanted bench && step "bench-$world" 50 bash -c \
    "sizes_benchmark bench $world fp16 $sizes 16 lamport,flashinfer,flashinfer_overlap,vllm_custom,nccl"
  wanted variants && step "variants-$world" 40 bash -c \
    "sizes_benchmark variants $world fp16 8,6144,24576,65536 10 $v:Chain,$v:Plain,$v:Prepare,$v:Chain128,$v:Chain256,$v:TwoShot,$v:OneShot"
  wanted fused && step "fused-$world" 75 bash -c \
    "ranks $world bench/fused_ops.py --device cuda --tokens 1,4,16 --rounds 20 --seconds 25 --stall 40 --quiet --json $JSON/fused-$world.json"
  wanted norm && step "norm-$world" 30 bash -c \
    "sizes_benchmark norm $world fp16 6144,24576 5 lamport,flashinfer_norm,flashinfer_norm_overlap"
done
if wanted test; then
  step tests 330 python3 -m pytest -p no:cacheprovider -q --timeout 150 --durations 8 tests/cuda
  grep -E "^(FAILED|ERROR|SKIPPED)|[0-9]+ (passed|failed|skipped)" "$log" | tail -15 | cut -c1-170
fi
wanted symmetric && step symmetric-2 40 bash -c \
  "TORCH_SYMM_MEM_ALLOW_OVERLAPPING_DEVICES=1 sizes_benchmark symmetric 2 bf16 6144,65536,1MiB 6 lamport,torch_symm_one_shot,torch_symm_two_shot"
if wanted sanitize; then
  # Outside MPS: the tool watches each process by itself.
  for tool in memcheck racecheck; do
    step "$tool" 60 env CUDA_MPS_PIPE_DIRECTORY=/nonexistent \
      compute-sanitizer --tool "$tool" --target-processes all --error-exitcode 9 python3 -m tests.cuda.short_run
  done
fi

python3 bench/cuda_summary.py "$JSON" 2>&1 | tee "$OUT/summary.txt"
echo "$(($(date +%s) - BEGAN)) s in all"
