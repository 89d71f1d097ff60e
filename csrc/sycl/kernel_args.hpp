/// The one argument of every SYCL kernel, by value: pointers inside a struct keep their cache hints on every
/// generation of GPU, and one set_arg is the cheapest launch.
#pragma once
#include "csrc/device/workspace_view.hpp"

namespace lamport {

struct SyclKernelArgs {
  WorkspaceView workspace;
  AllReduceArgs all_reduce;
  uint64_t yield;  ///< address of a host function for the CPU device's build; unused on a GPU
};

}  // namespace lamport
