/// The fused collectives compiled for the host, once per instruction set.
#pragma once
#include "csrc/device/fused_args.hpp"
#include "csrc/host/shm/kernels.hpp"

namespace lamport {

template <class Args>
using FusedKernel = void (*)(const HostWait&, const WorkspaceView&, const Args&);

/// [Format][world], worlds from 1, two-shot from 2; the view of a world of one may be empty.
template <class Args>
using FusedKernels = FusedKernel<Args>[3][kMaxWorld + 1];

struct FusedKernelTable {
  const char* isa;
  FusedKernels<AddAllReduceArgs> add_all_reduce[2];  ///< by Algorithm
  FusedKernels<QkNormArgs> qk_rms_norm;
  FusedKernels<AddNormArgs> add_all_reduce_rms_norm;
  FusedKernels<SconvArgs> rs_sconv_ag_norm;
};

extern const FusedKernelTable kPlainFusedKernels;
#if defined(__x86_64__)
extern const FusedKernelTable kAvx2FusedKernels;
extern const FusedKernelTable kAvx512FusedKernels;
#endif

/// Of the instruction set that best_kernels() chose.
const FusedKernelTable& best_fused_kernels();

}  // namespace lamport
