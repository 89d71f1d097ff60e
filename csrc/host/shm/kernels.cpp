#include "csrc/host/shm/kernels.hpp"

#include <cstdlib>
#include <string>

#include "csrc/host/errors.hpp"

namespace lamport {
namespace {

bool runs(const std::string& isa) {
#if defined(__x86_64__)
  __builtin_cpu_init();
  if (isa == "avx2") return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("f16c");
  if (isa == "avx512")
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512dq");
#endif
  return isa == "plain";
}

const KernelTable& choose() {
  const KernelTable* tables[] = {
#if defined(__x86_64__)
      &kAvx512Kernels, &kAvx2Kernels,
#endif
      &kPlainKernels};
  const char* wanted = std::getenv("LAMPORT_ISA");
  for (const KernelTable* table : tables) {
    if (wanted != nullptr ? table->isa == std::string(wanted) && runs(table->isa) : runs(table->isa))
      return *table;
  }
  throw Error("WorkspaceError",
              "LAMPORT_ISA=" + std::string(wanted) +
                  " is not one of plain, avx2, avx512, or this CPU lacks it; unset it to choose "
                  "automatically");
}

}  // namespace

const KernelTable& best_kernels() {
  static const KernelTable& table = choose();
  return table;
}

}  // namespace lamport
