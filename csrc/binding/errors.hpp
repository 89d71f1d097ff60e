#pragma once
#include <nanobind/nanobind.h>

#include "csrc/host/engine.hpp"

namespace lamport {

/// Raises the Python exception that `error` names.
inline void set_error(const Error& error) {
  if (PyErr_Occurred()) return;  // a signal, not the clock, ended the wait
  const nanobind::object type =
      nanobind::module_::import_("lamport_xpu.comm.errors").attr(error.python_class);
  const auto* timeout = dynamic_cast<const CollectiveTimeout*>(&error);
  if (timeout == nullptr) {
    PyErr_SetString(type.ptr(), error.what());
  } else {
    PyErr_SetObject(type.ptr(),
                    type(timeout->op, timeout->peer, timeout->epoch, timeout->bytes, timeout->detail).ptr());
  }
}

/// Makes lamport::Error surface as that class. Once per extension module.
inline void register_errors() {
  nanobind::register_exception_translator([](const std::exception_ptr& pointer, void*) {
    try {
      std::rethrow_exception(pointer);
    } catch (const Error& error) {
      set_error(error);
    }
  });
}

}  // namespace lamport
