/// A control is a shipped kernel with one thing done the obvious, wrong way. The gate must notice each.
#pragma once
#include <sycl/ext/oneapi/kernel_properties/properties.hpp>

#include "csrc/device/all_reduce_one_shot.hpp"
#include "csrc/device/target_sycl.hpp"
#include "csrc/sycl/kernel_args.hpp"

namespace syclex = sycl::ext::oneapi::experimental;

#define CONTROL_KERNEL(name, Target)                                                          \
  extern "C" SYCL_EXTERNAL SYCL_EXT_ONEAPI_FUNCTION_PROPERTY((syclex::nd_range_kernel<1>))    \
      SYCL_EXT_ONEAPI_FUNCTION_PROPERTY((syclex::sub_group_size<16>)) void name(              \
          lamport::SyclKernelArgs args) {                                                     \
    Target target{lamport::GpuPause()};                                                       \
    lamport::all_reduce_one_shot<Target, lamport::F16, LAMPORT_WORLD>(target, args.workspace, \
                                                                      args.all_reduce);       \
  }

using Shipped = lamport::SyclTarget<lamport::GpuPause>;
