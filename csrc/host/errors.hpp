/// What can go wrong, by the name of the Python exception it becomes (comm/errors.py).
#pragma once
#include <stdexcept>
#include <string>

namespace lamport {

class Error : public std::runtime_error {
 public:
  Error(const char* python_class, const std::string& message)
      : std::runtime_error(message), python_class(python_class) {}
  const char* python_class;
};

}  // namespace lamport
