/// Runs a driver call that has been seen to hang on a thread of its own, and gives up waiting after a
/// deadline.
#pragma once

#include <chrono>
#include <condition_variable>
#include <exception>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>

namespace lamport {

/// True when `call` returned in time (its exception, if any, is rethrown here); false when it is still
/// running. In that case the thread is abandoned with everything `call` captured, so capture by value only.
template <typename Call>
bool run_bounded(std::chrono::milliseconds deadline, Call call) {
  struct State {
    std::mutex mutex;
    std::condition_variable changed;
    bool done = false;
    std::exception_ptr error;
  };
  auto state = std::make_shared<State>();
  std::thread([state, call = std::move(call)]() mutable {
    std::exception_ptr error;
    try {
      call();
    } catch (...) {  // carried to the caller below, not swallowed
      error = std::current_exception();
    }
    const std::lock_guard<std::mutex> lock(state->mutex);
    state->done = true;
    state->error = error;
    state->changed.notify_all();
  }).detach();

  std::unique_lock<std::mutex> lock(state->mutex);
  if (!state->changed.wait_for(lock, deadline, [&] { return state->done; })) return false;
  if (state->error) std::rethrow_exception(state->error);
  return true;
}

}  // namespace lamport
