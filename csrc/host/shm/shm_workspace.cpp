#include "csrc/host/shm/shm_workspace.hpp"

#include <algorithm>

#include "csrc/device/packet.hpp"
#include "csrc/host/errors.hpp"

namespace lamport {
namespace {

std::string segment_name(const std::string& token, uint32_t rank) {
  return "/lamport-" + token + "-" + std::to_string(rank);
}

}  // namespace

ShmWorkspace::ShmWorkspace(uint32_t rank, Layout layout, double timeout_seconds)
    : rank_(rank),
      layout_(layout),
      patience_ns_(static_cast<uint64_t>(timeout_seconds * 1e9)),
      segments_(layout.world) {
  if (layout.world < 1 || layout.world > kMaxWorld || rank >= layout.world) {
    throw Error("WorkspaceError", "world size must be 1 to " + std::to_string(kMaxWorld) + ", got rank " +
                                      std::to_string(rank) + " of " + std::to_string(layout.world));
  }
  if (layout.slot_bytes % 64 != 0 || layout.slice_bytes % 64 != 0 || layout.slot_bytes == 0 ||
      layout.slice_bytes == 0 || layout.generation_bytes() > (uint64_t{1} << 31)) {
    throw Error("WorkspaceError", "slot and slice sizes must be positive multiples of 64 bytes");
  }
}

std::string ShmWorkspace::allocate(const std::string& token) {
  const std::string name = segment_name(token, rank_);
  segments_[rank_] = Segment::create(name, layout_.total_bytes());
  auto* words = reinterpret_cast<uint32_t*>(segments_[rank_].data() + Layout::kHeaderBytes);
  std::fill_n(words, 2 * layout_.generation_bytes() / 4, kEmpty);
  return name;
}

void ShmWorkspace::open_peer(uint32_t rank, const std::string& name) {
  segments_.at(rank) = Segment::open(name, layout_.total_bytes());
}

Line* ShmWorkspace::cookie(const Segment& segment, uint32_t source) const {
  return reinterpret_cast<Line*>(segment.data() + Layout::kCookieOffset) + source;
}

void ShmWorkspace::write_cookie(uint32_t peer, uint32_t value) {
  __atomic_store_n(&cookie(segments_.at(peer), rank_)->value, value, __ATOMIC_RELEASE);
}

uint32_t ShmWorkspace::read_cookie(uint32_t source) const {
  return __atomic_load_n(&cookie(segments_[rank_], source)->value, __ATOMIC_ACQUIRE);
}

void ShmWorkspace::withdraw(const std::string& token) {
  for (uint32_t r = 0; r < layout_.world; ++r) Segment::unlink(segment_name(token, r));
}

void ShmWorkspace::close_peers() {
  for (uint32_t r = 0; r < layout_.world; ++r) {
    if (r != rank_) segments_[r] = Segment();
  }
}

void ShmWorkspace::free() { segments_[rank_] = Segment(); }

bool ShmWorkspace::ready() const {
  return std::all_of(segments_.begin(), segments_.end(),
                     [](const Segment& s) { return s.data() != nullptr; });
}

WorkspaceView ShmWorkspace::view() const {
  WorkspaceView view{};
  char* own = segments_[rank_].data();
  view.own = reinterpret_cast<uint32_t*>(own + Layout::kHeaderBytes);
  view.control = reinterpret_cast<Control*>(own);
  view.status = reinterpret_cast<Status*>(own + Layout::kStatusOffset);
  view.rank = rank_;
  view.generation_words = static_cast<uint32_t>(layout_.generation_bytes() / 4);
  view.patience = patience_ns_;
  for (uint32_t i = 0; i + 1 < layout_.world; ++i) {
    const Segment& peer = segments_[(rank_ + 1 + i) % layout_.world];
    view.peer[i] = reinterpret_cast<uint32_t*>(peer.data() + Layout::kHeaderBytes);
  }
  return view;
}

std::vector<uintptr_t> ShmWorkspace::addresses() const {
  std::vector<uintptr_t> bases;
  for (const Segment& segment : segments_) bases.push_back(reinterpret_cast<uintptr_t>(segment.data()));
  return bases;
}

}  // namespace lamport
