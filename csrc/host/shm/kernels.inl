// Instantiates the collectives for one instruction set. The including file defines LAMPORT_ISA_INDEX,
// LAMPORT_ISA_NAME and LAMPORT_ISA_TABLE, and is compiled with that instruction set's flags.
#include "csrc/device/target_host.hpp"
// target_host.hpp first: it sets how functions are declared.
#include "csrc/device/all_reduce_one_shot.hpp"
#include "csrc/device/all_reduce_two_shot.hpp"
#include "csrc/host/shm/kernels.hpp"

namespace lamport {
namespace {

using Target = HostTarget<LAMPORT_ISA_INDEX>;

template <Algorithm A, class T, int W>
void all_reduce(const HostWait& wait, const WorkspaceView& ws, const AllReduceArgs& args) {
  Target target(wait);
  if constexpr (A == Algorithm::one_shot) {
    all_reduce_one_shot<Target, T, W>(target, ws, args);
  } else {
    all_reduce_two_shot<Target, T, W>(target, ws, args);
  }
}

#define LAMPORT_WORLDS(A, T) \
  {nullptr,                  \
   nullptr,                  \
   all_reduce<A, T, 2>,      \
   all_reduce<A, T, 3>,      \
   all_reduce<A, T, 4>,      \
   all_reduce<A, T, 5>,      \
   all_reduce<A, T, 6>,      \
   all_reduce<A, T, 7>,      \
   all_reduce<A, T, 8>}
#define LAMPORT_FORMATS(A) {LAMPORT_WORLDS(A, F32), LAMPORT_WORLDS(A, F16), LAMPORT_WORLDS(A, BF16)}

}  // namespace

const KernelTable LAMPORT_ISA_TABLE = {
    LAMPORT_ISA_NAME, {LAMPORT_FORMATS(Algorithm::one_shot), LAMPORT_FORMATS(Algorithm::two_shot)}};

}  // namespace lamport
