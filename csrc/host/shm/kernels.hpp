/// The collectives compiled for the host, once per instruction set.
#pragma once
#include <cstdint>

#include "csrc/device/host_wait.hpp"
#include "csrc/device/packet.hpp"
#include "csrc/device/workspace_view.hpp"
#include "csrc/host/thresholds.hpp"

namespace lamport {

using AllReduceKernel = void (*)(const HostWait&, const WorkspaceView&, const AllReduceArgs&);

struct KernelTable {
  const char* isa;
  AllReduceKernel all_reduce[2][3][kMaxWorld + 1];  ///< [Algorithm][Format][world], worlds from 2
};

extern const KernelTable kPlainKernels;
#if defined(__x86_64__)
extern const KernelTable kAvx2Kernels;
extern const KernelTable kAvx512Kernels;
#endif

/// The widest set this CPU runs, or the one LAMPORT_ISA (plain, avx2, avx512) names.
const KernelTable& best_kernels();

}  // namespace lamport
