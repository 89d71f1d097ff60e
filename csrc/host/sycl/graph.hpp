/// A recorded sequence of launches. Frameworks have recorders of their own; this one is for callers that have
/// none (dpctl), and for the tests.
#pragma once
#include <optional>
#include <sycl/sycl.hpp>

#include "csrc/host/errors.hpp"

namespace lamport {

class Graph {
 public:
  explicit Graph(sycl::queue& queue) : queue_(queue), graph_(queue.get_context(), queue.get_device()) {}
  ~Graph() {
    if (recording_) graph_.end_recording(queue_);
  }
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;

  /// What is launched on the queue from now on is recorded instead of run.
  void begin() {
    graph_.begin_recording(queue_);
    recording_ = true;
  }
  void end() {
    graph_.end_recording(queue_);
    recording_ = false;
    executable_.emplace(graph_.finalize());
  }
  void replay() {
    if (!executable_) throw Error("QueueError", "nothing has been recorded: call begin(), launch, end()");
    queue_.ext_oneapi_graph(*executable_);
  }

 private:
  using State = sycl::ext::oneapi::experimental::graph_state;
  sycl::queue queue_;
  sycl::ext::oneapi::experimental::command_graph<State::modifiable> graph_;
  std::optional<sycl::ext::oneapi::experimental::command_graph<State::executable>> executable_;
  bool recording_ = false;
};

}  // namespace lamport
