/// Arguments of the fused collectives, passed to a kernel by value. Memory of an output may be exactly that
/// of the input named with it, and must otherwise be disjoint from everything else.
#pragma once
#include "packet.hpp"
#include "workspace_view.hpp"

namespace lamport {

/// all_reduce(in + shared). `out` may be `in` or `shared`.
struct AddAllReduceArgs : AllReduceArgs {
  const void* shared;
};

/// Rows of `tokens` tokens, addressed through their strides in bytes: a row of `qkv` begins with `q_bytes` of
/// queries and `k_bytes` of keys. `q` may be the queries inside `qkv`, `k` the keys.
struct QkNormArgs {
  const void* qkv;
  const void* q_weight;
  const void* k_weight;
  void* q;
  void* k;
  uint64_t qkv_stride, q_stride, k_stride;
  uint32_t q_bytes, k_bytes;
  uint32_t tokens;
  float q_full, k_full;  ///< elements of a full row of all ranks
  float eps;
  uint32_t slot_packets;
};

/// `tokens` contiguous rows of `row_bytes`. `shared` may be null. `normed` may be `in`, and `new_residual`
/// may be `residual`.
struct AddNormArgs {
  const void* in;
  const void* shared;
  const void* residual;
  const void* weight;
  void* normed;
  void* new_residual;
  uint32_t row_bytes;
  uint32_t tokens;
  float full;  ///< elements of a row
  float eps;
  bool gemma;  ///< scale by 1 + weight
  uint32_t slot_packets;
};

/// A short convolution over a paged cache; see rs_sconv_ag_norm.hpp. `tokens` contiguous rows of `row_bytes`, of
/// which this rank convolves the `shard_bytes` that begin at rank * shard_bytes. `shared` and `norm_weight` may be
/// null, and `normed` is null with `norm_weight`. `normed` may be `in`, and `new_residual` may be `residual`.
struct SconvArgs {
  const void* in;
  const void* shared;
  const void* residual;
  const void* conv_weight;  ///< [channels of the shard, 4]
  const void* norm_weight;
  void* normed;
  void* new_residual;

  void* cache;  ///< [blocks, heads, block_size, ...]; strides in bytes, innermost contiguous
  uint64_t block_stride, head_stride, token_stride;
  uint32_t block_size;
  uint32_t head_bytes;    ///< channels of a head, consecutive in the shard
  uint32_t cache_offset;  ///< bytes from a token's place in the cache to its first channel

  const int64_t* positions;  ///< of each token in its sequence
  const int64_t* slots;      ///< block * block_size + place in it; negative: padding
  const int32_t* sequences;
  const int32_t* block_table;  ///< [sequences, table_stride]
  uint32_t table_stride;
  uint32_t max_blocks;  ///< columns of block_table

  uint32_t row_bytes;
  uint32_t shard_bytes;
  uint32_t tokens;
  float full;  ///< elements of a row
  float eps;
  uint32_t slot_packets;  ///< capacity of a slice
};

/// Of the tensor that is exchanged: what a time-out reports.
LAMPORT_FN uint64_t sent_bytes(const AllReduceArgs& args) { return args.bytes; }
LAMPORT_FN uint64_t sent_bytes(const QkNormArgs& args) { return uint64_t{args.tokens} * 8; }
LAMPORT_FN uint64_t sent_bytes(const AddNormArgs& args) { return uint64_t{args.tokens} * args.row_bytes; }
LAMPORT_FN uint64_t sent_bytes(const SconvArgs& args) { return uint64_t{args.tokens} * args.row_bytes; }

}  // namespace lamport
