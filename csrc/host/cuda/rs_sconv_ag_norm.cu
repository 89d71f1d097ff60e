#define LAMPORT_HEADER "csrc/device/rs_sconv_ag_norm.hpp"
#define LAMPORT_COLLECTIVE rs_sconv_ag_norm
#define LAMPORT_ARGS SconvArgs
#define LAMPORT_KERNEL rs_sconv_ag_norm
#include "csrc/host/cuda/kernels.inl"
