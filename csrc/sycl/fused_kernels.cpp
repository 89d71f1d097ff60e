/// Entry points of the fused collectives.
#include "csrc/sycl/entry_point.hpp"
// entry_point.hpp first: its target sets how functions are declared.
#include "csrc/device/add_all_reduce_rms_norm.hpp"
#include "csrc/device/all_reduce_one_shot.hpp"
#include "csrc/device/all_reduce_two_shot.hpp"
#include "csrc/device/qk_rms_norm.hpp"
#include "csrc/device/rs_sconv_ag_norm.hpp"

namespace lamport {

template <class Target, class T, int W>
LAMPORT_FN void add_all_reduce_one_shot(Target& target, const WorkspaceView& ws,
                                        const AddAllReduceArgs& args) {
  all_reduce_one_shot<Target, T, W>(target, ws, args);
}
template <class Target, class T, int W>
LAMPORT_FN void add_all_reduce_two_shot(Target& target, const WorkspaceView& ws,
                                        const AddAllReduceArgs& args) {
  all_reduce_two_shot<Target, T, W>(target, ws, args);
}

}  // namespace lamport

LAMPORT_KERNELS(add_all_reduce_one_shot, AddAllReduceArgs)
#if LAMPORT_WORLD > 1
LAMPORT_KERNELS(add_all_reduce_two_shot, AddAllReduceArgs)
#endif
LAMPORT_KERNELS(qk_rms_norm, QkNormArgs)
LAMPORT_KERNELS(add_all_reduce_rms_norm, AddNormArgs)
LAMPORT_KERNELS(rs_sconv_ag_norm, SconvArgs)
