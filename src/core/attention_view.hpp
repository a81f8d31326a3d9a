// What decode_attention and prefill_attention share, so that validation and every host implementation are written once:
// queries, outputs, and one or two lists of keys per row (contract sections 5, 6 and 14).
#pragma once

#include <algorithm>
#include <cstdint>

#include "core/tensor.hpp"
#include "format/chunked.hpp"
#include "format/page.hpp"
#include "megamla/decode_attention.h"
#include "megamla/prefill_attention.h"

namespace megamla {

// One list of keys per query row, and where its keys lie: records of a paged cache, or bf16 rows (cache absent).
struct KeySource {
  megamla_tensor indices;  // I32 [T, width]
  megamla_tensor lens;     // I32 [T] or absent
  megamla_kv_cache cache;
  megamla_tensor rows;  // BF16 [s_kv, 512]

  int64_t count() const { return present(cache) ? format::num_slots(cache) : rows.shape[0]; }

  // Entries of row t that may be looked at: the length, clamped.
  int64_t length(int64_t t) const {
    const int64_t width = indices.shape[1];
    return present(lens) ? std::clamp<int64_t>(at<const int32_t>(lens, t), 0, width) : width;
  }
};

struct AttentionView {
  megamla_tensor q;
  megamla_q_layout q_layout;
  bool q_norm;
  float q_norm_eps;
  float softmax_scale;
  megamla_tensor positions;
  megamla_tensor cos_sin;
  KeySource sources[2];  // window, then compressed
  int num_sources;
  megamla_tensor attn_sink;
  int64_t live_heads;  // 8 .. H
  megamla_attention_output output;
  megamla_tensor out;
  megamla_tensor out_scale;
  megamla_tensor lse;
  megamla_tensor max_logits;

  int64_t tokens() const { return q.shape[0]; }
  int64_t heads() const { return q.shape[1]; }  // of the buffers

  // The rotation of row t (null: none is wanted), or that its position lies outside the table.
  struct Rotation {
    const float* cos_sin;
    bool outside;
  };
  Rotation rotation(int64_t t) const {
    if (!present(cos_sin)) return {nullptr, false};
    const int64_t position = index_at(positions, t);
    if (position < 0 || position >= cos_sin.shape[0]) return {nullptr, true};
    return {&at<const float>(cos_sin, position, 0), false};
  }

  // Element (head, dim) of row t's query lies at q_row(t)[q_index(head, dim)].
  const format::Bf16* q_row(int64_t t) const { return &at<const format::Bf16>(q, t); }
  int64_t q_index(int64_t head, int64_t dim) const {
    return q_layout == MEGAMLA_Q_CHUNKED ? format::q_chunked_index(heads(), head, dim) : head * q.stride[1] + dim;
  }

  // Calls f(source, slot) for every valid key of row t, in list order.
  template <class F>
  void for_each_key(int64_t t, F&& f) const {
    for (int s = 0; s < num_sources; ++s) {
      const KeySource& source = sources[s];
      const int64_t count = source.count();
      const int64_t length = source.length(t);
      if (length == 0) continue;
      const int32_t* row = &at<const int32_t>(source.indices, t);
      for (int64_t i = 0; i < length; ++i) {
        const int64_t slot = row[i * source.indices.stride[1]];
        if (slot >= 0 && slot < count) f(source, slot);
      }
    }
  }
  // At least as many as count_keys, without a look at them.
  int64_t listed_keys(int64_t t) const {
    int64_t keys = 0;
    for (int s = 0; s < num_sources; ++s) keys += sources[s].length(t);
    return keys;
  }
  int64_t count_keys(int64_t t) const {
    int64_t keys = 0;
    for_each_key(t, [&](const KeySource&, int64_t) { ++keys; });
    return keys;
  }
};

AttentionView view_of(const megamla_decode_attention_params& p);
AttentionView view_of(const megamla_prefill_attention_params& p);

}  // namespace megamla
