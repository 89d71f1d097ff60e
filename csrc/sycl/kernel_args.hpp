/// The one argument of a SYCL kernel, by value: pointers inside a struct keep their cache hints on every generation of
/// GPU, and one set_arg is the cheapest launch.
#pragma once
#include "csrc/device/workspace_view.hpp"

namespace lamport {

/// `Args`: what the collective's header in csrc/device takes.
template <class Args>
struct SyclKernelArgs {
  WorkspaceView workspace;
  Args collective;
  uint32_t id;     ///< which collective, for the report of a time-out
  uint64_t yield;  ///< address of a host function for the CPU device's build; unused on a GPU
};

}  // namespace lamport
