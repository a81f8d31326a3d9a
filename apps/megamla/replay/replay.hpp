// A replay: trace in, figures out.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "replay/model.hpp"
#include "replay/row_hashes.hpp"
#include "replay/verifier.hpp"

namespace megamla::replay {

struct ReplayOptions {
  std::string trace;
  int64_t requests = -1;      // all
  int64_t max_tokens = 0;     // prompt and output of a request together; 0: as traced
  int64_t max_requests = 64;  // running at a time
  double verify_rate = 0;
  // Afterwards each request again by itself, prompt in one go, no shared prefix: every row's bits must be the same. The
  // layers are batch-invariant then.
  bool compare_alone = false;
  ModelOptions model;
};

struct ReplayResult {
  int64_t requests = 0;
  int64_t steps = 0;
  int64_t graph_replays = 0;  // steps that were one graph launch
  int64_t prefill_tokens = 0;
  int64_t decode_tokens = 0;
  int64_t reused_tokens = 0;
  double prefill_seconds = 0;  // of a step's time, shared by tokens where a step has both kinds
  double decode_seconds = 0;
  double verify_seconds = 0;
  double wall_seconds = 0;
  std::vector<double> step_seconds;  // ascending
  int64_t weight_bytes = 0;
  int64_t pool_bytes = 0;
  int64_t workspace_bytes = 0;
  int64_t peak_rss_bytes = 0;
  // Resident memory once half of the tokens were done, and after the last: a leak grows in between.
  int64_t half_way_rss_bytes = 0;
  int64_t last_rss_bytes = 0;
  double kv_bytes_per_token = 0;
  int64_t window_blocks = 0, window_blocks_peak = 0, window_blocks_left = 0;
  int64_t compressed_blocks = 0, compressed_blocks_peak = 0, compressed_blocks_left = 0;
  WorstErrors worst;
  Comparison alone;
  double alone_seconds = 0;
};

struct Progress {
  const char* phase;
  int64_t done_requests;
  int64_t all_requests;
  int64_t tokens;
  int64_t all_tokens;
  double seconds;
};

// Throws app::InputError. `progress` is called after each step.
ReplayResult run_replay(ReplayOptions options, const std::function<void(const Progress&)>& progress);

}  // namespace megamla::replay
