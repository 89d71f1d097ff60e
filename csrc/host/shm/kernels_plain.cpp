#define LAMPORT_PLAIN_LOOPS
#define LAMPORT_ISA_INDEX 0
#define LAMPORT_ISA_NAME "plain"
#define LAMPORT_ISA_TABLE kPlainKernels
#include "csrc/host/shm/kernels.inl"
