/// The Level Zero loader, opened at run time: a wheel built anywhere runs on machines with and without it.
#pragma once

#include <string>

#include "csrc/host/level_zero/ze_abi.hpp"
#include "csrc/host/level_zero/ze_error.hpp"

namespace lamport::ze {

struct Api {
#define LAMPORT_ZE_DECLARE(name, signature) \
  using name##Function = signature;         \
  name##Function* name = nullptr;
  LAMPORT_ZE_FUNCTIONS(LAMPORT_ZE_DECLARE)
#undef LAMPORT_ZE_DECLARE
};

/// The loader's entry points, after zeInit. Opened once a process; LAMPORT_ZE_LOADER names another library to
/// open instead of libze_loader.so.1. Throws kNoLoader, kDriverTooOld or kNoDevice, and tries afresh next
/// time.
const Api& api();

/// Path of the library that api() opened.
const std::string& loader_path();

}  // namespace lamport::ze
