#define LAMPORT_ISA_INDEX 2
#define LAMPORT_ISA_NAME "avx512"
#define LAMPORT_ISA_TABLE kAvx512FusedKernels
#include "csrc/host/shm/fused_kernels.inl"
