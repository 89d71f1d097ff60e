#define LAMPORT_ISA_INDEX 1
#define LAMPORT_ISA_NAME "avx2"
#define LAMPORT_ISA_TABLE kAvx2FusedKernels
#include "csrc/host/shm/fused_kernels.inl"
