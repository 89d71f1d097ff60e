// Instantiates the fused collectives for one instruction set. The including file defines LAMPORT_ISA_INDEX,
// LAMPORT_ISA_NAME and LAMPORT_ISA_TABLE, and is compiled with that instruction set's flags.
#include "csrc/device/target_host.hpp"
// target_host.hpp first: it sets how functions are declared.
#include "csrc/device/add_all_reduce_rms_norm.hpp"
#include "csrc/device/all_reduce_one_shot.hpp"
#include "csrc/device/all_reduce_two_shot.hpp"
#include "csrc/device/qk_rms_norm.hpp"
#include "csrc/device/rs_sconv_ag_norm.hpp"
#include "csrc/host/shm/fused_kernels.hpp"
#if defined(__AVX2__)
#include "csrc/device/row_math_x86.hpp"
#endif

namespace lamport {
namespace {

using Target = HostTarget<LAMPORT_ISA_INDEX>;

template <class T, int W>
void add_one_shot(const HostWait& wait, const WorkspaceView& ws, const AddAllReduceArgs& args) {
  Target target(wait);
  all_reduce_one_shot<Target, T, W>(target, ws, args);
}

template <class T, int W>
void add_two_shot(const HostWait& wait, const WorkspaceView& ws, const AddAllReduceArgs& args) {
  Target target(wait);
  all_reduce_two_shot<Target, T, W>(target, ws, args);
}

template <class T, int W>
void qk_norm(const HostWait& wait, const WorkspaceView& ws, const QkNormArgs& args) {
  Target target(wait);
  qk_rms_norm<Target, T, W>(target, ws, args);
}

template <class T, int W>
void add_norm(const HostWait& wait, const WorkspaceView& ws, const AddNormArgs& args) {
  Target target(wait);
  add_all_reduce_rms_norm<Target, T, W>(target, ws, args);
}

template <class T, int W>
void sconv_norm(const HostWait& wait, const WorkspaceView& ws, const SconvArgs& args) {
  Target target(wait);
  rs_sconv_ag_norm<Target, T, W>(target, ws, args);
}

#define LAMPORT_WORLDS(kernel, T, alone)                                 \
  {nullptr,      alone,        kernel<T, 2>, kernel<T, 3>, kernel<T, 4>, \
   kernel<T, 5>, kernel<T, 6>, kernel<T, 7>, kernel<T, 8>}
#define LAMPORT_FORMATS(kernel)                                                                  \
  {LAMPORT_WORLDS(kernel, F32, (kernel<F32, 1>)), LAMPORT_WORLDS(kernel, F16, (kernel<F16, 1>)), \
   LAMPORT_WORLDS(kernel, BF16, (kernel<BF16, 1>))}
#define LAMPORT_FORMATS_FROM_2(kernel)                                         \
  {LAMPORT_WORLDS(kernel, F32, nullptr), LAMPORT_WORLDS(kernel, F16, nullptr), \
   LAMPORT_WORLDS(kernel, BF16, nullptr)}

}  // namespace

const FusedKernelTable LAMPORT_ISA_TABLE = {
    LAMPORT_ISA_NAME,
    {LAMPORT_FORMATS(add_one_shot), LAMPORT_FORMATS_FROM_2(add_two_shot)},
    LAMPORT_FORMATS(qk_norm),
    LAMPORT_FORMATS(add_norm),
    LAMPORT_FORMATS(sconv_norm)};

}  // namespace lamport
