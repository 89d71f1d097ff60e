/// sycl::queue objects that belong to somebody else, by address, and our own.
#pragma once
#include <cstdint>
#include <sycl/sycl.hpp>
#include <utility>

namespace lamport {

/// The queue object at `address`: torch.xpu's Stream.sycl_queue, or dpctl's SyclQueue.addressof_ref(). It
/// must be in-order, because collectives have no other order than that of their launches. Throws
/// Error("QueueError").
sycl::queue& queue_at(uintptr_t address);

/// An in-order queue on device `index` of kind "gpu" or "cpu". Throws Error("QueueError").
sycl::queue make_queue(const char* kind, uint32_t index);

/// Level Zero's context and device of a queue, for allocations that its kernels may touch; zeros on the CPU.
std::pair<uintptr_t, uintptr_t> level_zero_handles(const sycl::queue& queue);

}  // namespace lamport
