/// The fused collectives for Python; the same for every device's module.
#pragma once
#include <nanobind/nanobind.h>

#include "csrc/binding/tensor.hpp"
#include "csrc/host/engine.hpp"

namespace lamport {

/// `Collectives` has a member `Engine& engine()`.
template <class Collectives>
void bind_fused(nanobind::class_<Collectives>& cls) {
  namespace nb = nanobind;
  using namespace nb::literals;
  // Tensors are read in the order of the arguments, so that the first bad one is what a message names.
  cls.def(
      "add_all_reduce",
      [](Collectives& self, nb::handle routed, nb::handle shared, nb::handle out) {
        const StridedView r = strided_view(routed, "routed"), s = strided_view(shared, "shared"),
                          o = strided_view(out, "out");
        return self.engine().add_all_reduce(r, s, o, Library::large_sizes);
      },
      "routed"_a, "shared"_a, "out"_a);
  cls.def_prop_ro(
      "address", [](Collectives& self) { return reinterpret_cast<uintptr_t>(&self.engine()); },
      "Of the Engine, for the torch ops' registry.");
  cls.def(
      "qk_rms_norm",
      [](Collectives& self, nb::handle qkv, nb::handle q_weight, nb::handle k_weight, int64_t q_size,
         int64_t kv_size, double eps, nb::handle q, nb::handle k) {
        const StridedView x = strided_view(qkv, "qkv"), qw = strided_view(q_weight, "q_weight"),
                          kw = strided_view(k_weight, "k_weight"), qo = strided_view(q, "q"),
                          ko = strided_view(k, "k");
        self.engine().qk_rms_norm(x, qw, kw, q_size, kv_size, eps, qo, ko);
      },
      "qkv"_a, "q_weight"_a, "k_weight"_a, "q_size"_a, "kv_size"_a, "eps"_a, "q"_a, "k"_a);
  cls.def(
      "add_all_reduce_rms_norm",
      [](Collectives& self, nb::handle routed, nb::handle shared, nb::handle residual, nb::handle weight,
         double eps, bool gemma, nb::handle normed, nb::handle new_residual) {
        const StridedView r = strided_view(routed, "routed");
        StridedView s;
        if (!shared.is_none()) s = strided_view(shared, "shared");
        const StridedView x = strided_view(residual, "residual"), w = strided_view(weight, "weight"),
                          n = strided_view(normed, "normed"), o = strided_view(new_residual, "new_residual");
        self.engine().add_all_reduce_rms_norm(r, shared.is_none() ? nullptr : &s, x, w, eps, gemma, n, o);
      },
      "routed"_a, "shared"_a.none(), "residual"_a, "weight"_a, "eps"_a, "gemma"_a, "normed"_a,
      "new_residual"_a);
  cls.def(
      "rs_sconv_ag_norm",
      [](Collectives& self, nb::handle routed, nb::handle shared, nb::handle residual, nb::handle conv_weight,
         nb::handle norm_weight, double eps, nb::handle cache, nb::handle positions, nb::handle slot_mapping,
         nb::handle block_table, nb::handle seq_idx, int64_t channel_offset, nb::handle normed,
         nb::handle new_residual) {
        StridedView second, weight, result;
        SconvTensors t{};
        t.routed = strided_view(routed, "routed");
        if (!shared.is_none()) {
          second = strided_view(shared, "shared");
          t.shared = &second;
        }
        t.residual = strided_view(residual, "residual");
        t.conv_weight = strided_view(conv_weight, "conv_weight");
        if (!norm_weight.is_none()) {
          weight = strided_view(norm_weight, "norm_weight");
          result = strided_view(normed, "normed");
          t.norm_weight = &weight;
          t.normed = &result;
        }
        t.cache = strided_view(cache, "cache");
        t.positions = strided_view(positions, "positions");
        t.slots = strided_view(slot_mapping, "slot_mapping");
        t.block_table = strided_view(block_table, "block_table");
        t.sequences = strided_view(seq_idx, "seq_idx");
        t.new_residual = strided_view(new_residual, "new_residual");
        self.engine().rs_sconv_ag_norm(t, channel_offset, eps);
      },
      "routed"_a, "shared"_a.none(), "residual"_a, "conv_weight"_a, "norm_weight"_a.none(), "eps"_a,
      "cache"_a, "positions"_a, "slot_mapping"_a, "block_table"_a, "seq_idx"_a, "channel_offset"_a,
      "normed"_a.none(), "new_residual"_a);
}

}  // namespace lamport
