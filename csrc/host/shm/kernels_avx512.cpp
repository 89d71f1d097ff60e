#define LAMPORT_ISA_INDEX 2
#define LAMPORT_ISA_NAME "avx512"
#define LAMPORT_ISA_TABLE kAvx512Kernels
#include "csrc/host/shm/kernels.inl"
