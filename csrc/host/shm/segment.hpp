#pragma once
#include <cstdint>
#include <string>

namespace lamport {

/// A POSIX shared-memory object, mapped. Errors: lamport::Error("WorkspaceError").
class Segment {
 public:
  Segment() = default;
  Segment(Segment&& other) noexcept;
  Segment& operator=(Segment&& other) noexcept;
  ~Segment();

  /// Creates `name` exclusively with its pages reserved, so that a full /dev/shm is an error now, not SIGBUS
  /// later.
  static Segment create(const std::string& name, uint64_t bytes);
  static Segment open(const std::string& name, uint64_t bytes);
  static void unlink(const std::string& name);  ///< no error if it is gone already

  char* data() const { return data_; }

 private:
  Segment(char* data, uint64_t bytes) : data_(data), bytes_(bytes) {}
  char* data_ = nullptr;
  uint64_t bytes_ = 0;
};

}  // namespace lamport
