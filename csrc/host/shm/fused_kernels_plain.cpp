#define LAMPORT_PLAIN_LOOPS
#define LAMPORT_ISA_INDEX 0
#define LAMPORT_ISA_NAME "plain"
#define LAMPORT_ISA_TABLE kPlainFusedKernels
#include "csrc/host/shm/fused_kernels.inl"
