#!/usr/bin/env bash
# Compiles cuda_peers.cu to build/cuda_peers.so:  bench/native/build_cuda_peers.sh [FLASHINFER_DATA]
# FLASHINFER_DATA is the folder flashinfer/data of an unpacked flashinfer-python wheel (include/ and spdlog/ in it), by
# default .flashinfer in the repository's root; without one only the floor can be measured.
set -euo pipefail
cd "$(dirname "$0")/../.."
data=${1:-.flashinfer}
flags=(-std=c++17 -O3 "-arch=${CUDA_ARCH:-sm_90}" -shared -Xcompiler -fPIC --expt-relaxed-constexpr -w)
if [ -d "$data/include" ]; then
  flags+=(-DWITH_FLASHINFER "-I$data/include" "-I$data/spdlog/include")
else
  echo "no $data/include: FlashInfer and vLLM will be missing from the comparison"
fi
mkdir -p build
nvcc "${flags[@]}" bench/native/cuda_peers.cu -o build/cuda_peers.so
echo "built build/cuda_peers.so"
