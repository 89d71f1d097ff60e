#define LAMPORT_HEADER "csrc/device/qk_rms_norm.hpp"
#define LAMPORT_COLLECTIVE qk_rms_norm
#define LAMPORT_ARGS QkNormArgs
#define LAMPORT_KERNEL qk_rms_norm
#include "csrc/host/cuda/kernels.inl"
