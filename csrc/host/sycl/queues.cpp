#include "csrc/host/sycl/queues.hpp"

#include <string>
#include <sycl/ext/oneapi/backend/level_zero.hpp>

#include "csrc/host/errors.hpp"

namespace lamport {

sycl::queue& queue_at(uintptr_t address) {
  if (address == 0) throw Error("QueueError", "the queue's address is null");
  auto& queue = *reinterpret_cast<sycl::queue*>(address);
  if (!queue.is_in_order()) {
    throw Error("QueueError",
                "the queue is out-of-order; collectives need one created in-order "
                "(dpctl: SyclQueue(device, property=\"in_order\"))");
  }
  return queue;
}

sycl::queue make_queue(const char* kind, uint32_t index) {
  const bool cpu = std::string(kind) == "cpu";
  const auto devices =
      sycl::device::get_devices(cpu ? sycl::info::device_type::cpu : sycl::info::device_type::gpu);
  if (index >= devices.size()) {
    throw Error("QueueError",
                "there is no SYCL " + std::string(kind) + " device " + std::to_string(index) + " among " +
                    std::to_string(devices.size()) +
                    (cpu ? "; install intel-opencl-rt and set OCL_ICD_FILENAMES to its libintelocl.so"
                         : "; run python -m lamport_xpu.comm.doctor"));
  }
  return sycl::queue(devices[index], sycl::property::queue::in_order());
}

std::pair<uintptr_t, uintptr_t> level_zero_handles(const sycl::queue& queue) {
  constexpr auto kLevelZero = sycl::backend::ext_oneapi_level_zero;
  if (queue.get_backend() != kLevelZero) return {0, 0};
  return {reinterpret_cast<uintptr_t>(sycl::get_native<kLevelZero>(queue.get_context())),
          reinterpret_cast<uintptr_t>(sycl::get_native<kLevelZero>(queue.get_device()))};
}

}  // namespace lamport
