#define LAMPORT_HEADER "csrc/device/add_all_reduce_rms_norm.hpp"
#define LAMPORT_COLLECTIVE add_all_reduce_rms_norm
#define LAMPORT_ARGS AddNormArgs
#define LAMPORT_KERNEL add_all_reduce_rms_norm
#include "csrc/host/cuda/kernels.inl"
