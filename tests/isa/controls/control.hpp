/// A control is a shipped kernel with one thing done the obvious, wrong way. The gate must notice each.
#pragma once
#include <sycl/ext/oneapi/kernel_properties/properties.hpp>

#include "csrc/device/target_sycl.hpp"
// target_sycl.hpp first: it sets how functions are declared.
#include "csrc/device/all_reduce_one_shot.hpp"
#include "csrc/sycl/kernel_args.hpp"

namespace syclex = sycl::ext::oneapi::experimental;

#define CONTROL_KERNEL(name, Target)                                                          \
  extern "C" SYCL_EXTERNAL SYCL_EXT_ONEAPI_FUNCTION_PROPERTY((syclex::nd_range_kernel<1>))    \
      SYCL_EXT_ONEAPI_FUNCTION_PROPERTY((syclex::sub_group_size<16>)) void name(              \
          lamport::SyclKernelArgs<lamport::AllReduceArgs> args) {                             \
    Target target{lamport::GpuPause(), lamport::SyclCall{args.id, args.collective.bytes}};    \
    lamport::all_reduce_one_shot<Target, lamport::F16, LAMPORT_WORLD>(target, args.workspace, \
                                                                      args.collective);       \
  }

using Shipped = lamport::SyclTarget<lamport::GpuPause>;
