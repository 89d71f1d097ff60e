#define LAMPORT_HEADER "csrc/device/all_reduce_two_shot.hpp"
#define LAMPORT_COLLECTIVE all_reduce_two_shot
#define LAMPORT_ARGS AddAllReduceArgs
#define LAMPORT_KERNEL add_all_reduce_two_shot
#include "csrc/host/cuda/kernels.inl"
