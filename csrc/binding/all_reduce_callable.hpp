#pragma once
#include <nanobind/nanobind.h>

namespace lamport {

/// all_reduce(x, out=None) as a bare vectorcall object. A decode step calls it hundreds of times on a few
/// kilobytes, and argument parsing by nanobind under a Python method costs as much as the 8-byte all-reduce
/// itself.
///
/// `reduce(engine, x, out)` returns false if the size belongs to the library, which is then called as
/// `library(x, out)`; without `out` the result goes to `empty_like(x)`. The object keeps `engine` alive.
nanobind::object make_all_reduce(nanobind::object engine,
                                 bool (*reduce)(void* engine, nanobind::handle x, nanobind::handle out),
                                 nanobind::object empty_like, nanobind::object library);

}  // namespace lamport
