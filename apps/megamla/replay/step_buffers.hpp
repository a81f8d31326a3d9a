// Hidden states and metadata of a step, in buffers made once for the largest step. The metadata is one block of memory:
// on a GPU one copy brings all of it.
#pragma once

#include <vector>

#include "arena.hpp"
#include "gpu.hpp"
#include "megamla/layer.h"
#include "replay/scheduler.hpp"

namespace megamla::replay {

struct StepBatch {
  megamla_step_metadata metadata;  // compressed_slot_mapping: see StepBuffers::compressed_slots
  megamla_tensor x;
  int64_t tokens = 0;  // rows, padding included
};

class StepBuffers {
 public:
  struct Size {
    int64_t tokens;
    int64_t requests;
    int64_t max_model_len;
    int64_t hidden;
  };
  StepBuffers(app::Arena& arena, const Size& size);

  // x and metadata of a scheduled step; valid until the next call. More rows than the step has tokens: each further row
  // is a request of its own that has no slot and otherwise whatever an earlier step left. x is brought to the device,
  // the metadata by enqueue_upload.
  StepBatch fill(const std::vector<Scheduled>& step, int64_t rows);
  void enqueue_upload();

  // Of the layers of one ratio, 1 or 2.
  const megamla_tensor& compressed_slots(int64_t ratio) const { return compressed_slots_[ratio - 1]; }
  int64_t bytes() const { return bytes_; }

 private:
  void fill_tables(const Request& request, int64_t row);
  void fill_token(const Request& request, int64_t position, int64_t row);

  app::Arena& arena_;
  int64_t hidden_;
  int64_t bytes_ = 0;
  char* block_ = nullptr;
  int64_t block_bytes_ = 0;
  app::gpu::Pinned pinned_;
  uint64_t step_id_ = 0;
  megamla_tensor x_{};
  megamla_tensor query_start_loc_{}, seq_lens_{}, positions_{}, slots_{}, compressed_slots_[2]{}, window_table_{},
      compressed_table_{}, state_block_{};
};

// Hidden state of the token at `position` of a request: a function of its prompt block, or of the request where the
// trace names none.
void fill_hidden(const Request& request, int64_t position, int64_t width, uint16_t* row);

}  // namespace megamla::replay
