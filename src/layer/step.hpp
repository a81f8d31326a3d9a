// One step as the layer sees it: checked metadata, the decode/prefill split, the prefill chunks, and the workspace
// views.
#pragma once

#include <vector>

#include "core/status.hpp"
#include "core/tensor.hpp"
#include "layer/workspace.hpp"
#include "megamla/layer.h"
#include "megamla/plan.h"

namespace megamla::layer {

struct PrefillChunk {
  megamla_prefill_chunk rows;  // requests counted from the first prefill
  int64_t first_request;       // of the step
  int64_t first_token;
  int64_t num_tokens;
  bool gathered;  // else straight from the pages
};

struct Step {
  int64_t tokens = 0;       // T: rows of x, padding included
  int64_t real_tokens = 0;  // rows before the padding
  int64_t requests = 0;
  megamla_batch_split split{};
  std::vector<PrefillChunk> chunks;
  int64_t listed_requests =
      0;  // requests (from the first) whose tokens get slot lists: decodes, and prefills read from the pages
  int64_t listed_tokens = 0;
};

// `cuda_device`: where the layer's memory is; -1: on the host.
Status check_forward(const megamla_layer_config& config, const megamla_forward_params& params, int32_t cuda_device);
// Checks what only the data of the metadata shows (lengths that grow, sums that fit), then plans.
Status plan_step(const megamla_layer_config& config, const megamla_forward_params& params, megamla_device device,
                 Step* step);

// OK where the device has attention over gathered rows.
Status has_gathered_prefill(megamla_device device);
// Whether chunks of prompts may be gathered on that device: asked for or left open, and possible.
bool may_gather(const megamla_layer_config& config, megamla_device device);
// Rows of bf16 that the gathered path may need at most for one chunk; 0 where nothing is gathered.
int64_t max_gathered_rows(const megamla_layer_config& config, megamla_device device);

// What a step keeps in the head of the workspace. Views have as many rows as the limits given to lay_out.
struct StepViews {
  megamla_tensor qr_c;               // BF16 [T, q_lora + 512]
  megamla_tensor qr;                 // BF16 [T, q_lora]
  megamla_tensor latent;             // BF16 [T, 512]
  megamla_tensor q;                  // BF16 [T, H, 512] chunked
  megamla_tensor kv_score;           // F32 [T, 512 * ratio]; sources
  megamla_tensor compressed_latent;  // BF16 [T, 512]; sources
  megamla_tensor pair, pair_scale;
  megamla_tensor z;                            // BF16 [T, G, o_lora] or F8_E4M3 [T, G * o_lora]
  megamla_tensor z_scale;                      // MXFP8 only
  megamla_tensor window_slots;                 // I32 [T, window]
  megamla_tensor window_lens;                  // I32 [T]
  megamla_tensor is_valid;                     // U8 [T]
  megamla_tensor token_to_req;                 // I32 [T]
  megamla_tensor gather_lens;                  // I32 [R]
  megamla_tensor compressed_lens_of_requests;  // I32 [R]: seq_len / ratio
  megamla_tensor topk;                         // I32 [T, K]
  megamla_tensor compressed_slots;             // I32 [T, K]
  megamla_tensor compressed_lens;              // I32 [T]
  megamla_tensor combined;                     // I32 [T, ceil128(K + window)]
  megamla_tensor combined_lens;                // I32 [T]
  megamla_tensor y_part;                       // BF16 [T, hidden]: before a reduce-scatter; TP only
  void* op_workspace = nullptr;
  int64_t op_workspace_bytes = 0;
};

// Bytes of the head for T tokens and R requests.
int64_t head_bytes(const megamla_layer_config& config, int64_t tokens, int64_t requests, int64_t op_workspace_bytes);
struct StepSize {
  int64_t tokens;
  int64_t requests;
  int64_t op_workspace_bytes;
  int64_t gathered_rows;  // behind the head
};
// Lays the views out in a workspace of `cuda_device`.
Status lay_out(const megamla_layer_config& config, const StepSize& size, int32_t cuda_device, Workspace& workspace,
               StepViews* views);
// The largest op workspace of a step of `tokens` tokens; on a GPU twice, since ops run beside each other.
Status op_workspace_size(const megamla_layer_config& config, megamla_device device, int64_t num_threads, int64_t tokens,
                         int64_t* bytes);

}  // namespace megamla::layer
