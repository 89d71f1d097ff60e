/// Entry points of the all-reduce.
#include "csrc/sycl/entry_point.hpp"
// entry_point.hpp first: its target sets how functions are declared.
#include "csrc/device/all_reduce_one_shot.hpp"
#include "csrc/device/all_reduce_two_shot.hpp"

LAMPORT_KERNELS(all_reduce_one_shot, AllReduceArgs)
LAMPORT_KERNELS(all_reduce_two_shot, AllReduceArgs)
