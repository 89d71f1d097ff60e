#pragma once
#include <nanobind/nanobind.h>

#include "csrc/host/engine.hpp"

namespace lamport {

/// Sets the Python exception: the class of comm/errors.py that the error names.
inline void set_error(const Error& error) {
  nanobind::object type = nanobind::module_::import_("lamport_xpu.comm.errors").attr(error.python_class);
  PyErr_SetString(type.ptr(), error.what());
}

inline void set_error(const CollectiveTimeout& error) {
  if (PyErr_Occurred()) return;  // a signal, not the clock, ended the wait
  nanobind::object type = nanobind::module_::import_("lamport_xpu.comm.errors").attr("CollectiveTimeout");
  PyErr_SetObject(type.ptr(), type(error.op, error.peer, error.epoch, error.bytes).ptr());
}

/// Makes lamport::Error surface as that class. Once per extension module.
inline void register_errors() {
  nanobind::register_exception_translator([](const std::exception_ptr& pointer, void*) {
    try {
      std::rethrow_exception(pointer);
    } catch (const CollectiveTimeout& error) {
      set_error(error);
    } catch (const Error& error) {
      set_error(error);
    }
  });
}

}  // namespace lamport
