#include "csrc/host/shm/segment.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "csrc/host/errors.hpp"

namespace lamport {
namespace {

constexpr const char* kMemoryDir = "/dev/shm";

[[noreturn]] void fail(const std::string& what, int error) {
  throw Error("WorkspaceError", what + ": " + std::strerror(error));
}

[[noreturn]] void fail_reserve(const std::string& name, uint64_t bytes, int error) {
  shm_unlink(name.c_str());
  struct statvfs fs{};
  if (error == ENOSPC && statvfs(kMemoryDir, &fs) == 0) {
    throw Error(
        "SharedMemoryFullError",
        std::string(kMemoryDir) + " has " + std::to_string(uint64_t{fs.f_bavail} * fs.f_frsize >> 10) +
            " KiB free and this rank's workspace needs " + std::to_string(bytes >> 10) +
            " KiB; enlarge it (docker run --shm-size=1g, or mount -o remount,size=1g " + kMemoryDir + ")");
  }
  fail("cannot reserve shared memory " + name, error);
}

char* map(int fd, const std::string& name, uint64_t bytes) {
  void* data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  const int error = errno;
  close(fd);
  if (data == MAP_FAILED) fail("cannot map shared memory " + name, error);
  return static_cast<char*>(data);
}

}  // namespace

Segment::Segment(Segment&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}

Segment& Segment::operator=(Segment&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

Segment::~Segment() {
  if (data_ != nullptr) munmap(data_, bytes_);
}

Segment Segment::create(const std::string& name, uint64_t bytes) {
  const int fd = shm_open(name.c_str(), O_CREAT | O_EXCL | O_RDWR, 0600);
  if (fd < 0) fail("cannot create shared memory " + name, errno);
  const int error = posix_fallocate(fd, 0, static_cast<off_t>(bytes));
  if (error != 0) {
    close(fd);
    fail_reserve(name, bytes, error);
  }
  return Segment(map(fd, name, bytes), bytes);
}

Segment Segment::open(const std::string& name, uint64_t bytes) {
  const int fd = shm_open(name.c_str(), O_RDWR, 0);
  if (fd < 0) {
    fail("cannot open shared memory " + name +
             " of a peer; ranks in different containers need a common /dev/shm (docker run --ipc)",
         errno);
  }
  return Segment(map(fd, name, bytes), bytes);
}

void Segment::unlink(const std::string& name) { shm_unlink(name.c_str()); }

}  // namespace lamport
