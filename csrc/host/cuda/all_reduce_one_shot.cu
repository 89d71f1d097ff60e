#define LAMPORT_HEADER "csrc/device/all_reduce_one_shot.hpp"
#define LAMPORT_COLLECTIVE all_reduce_one_shot
#define LAMPORT_ARGS AllReduceArgs
#define LAMPORT_KERNEL all_reduce_one_shot
#include "csrc/host/cuda/kernels.inl"
