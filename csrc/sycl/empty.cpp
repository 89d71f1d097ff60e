/// A kernel that does nothing: the floor of a launch, for bench/launch_cost.py.
#include <sycl/ext/oneapi/kernel_properties/properties.hpp>

namespace syclex = sycl::ext::oneapi::experimental;

extern "C" SYCL_EXTERNAL SYCL_EXT_ONEAPI_FUNCTION_PROPERTY(
    (syclex::nd_range_kernel<1>)) void lamport_empty() {}
