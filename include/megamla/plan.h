/* Plans: pure functions from lengths to the shape of a step. Host memory only, no device. Contract sections 8 and 12.
 */
#ifndef MEGAMLA_PLAN_H
#define MEGAMLA_PLAN_H

#include "megamla/types.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct megamla_batch_split {
  int64_t num_decodes;
  int64_t num_prefills;
  int64_t num_decode_tokens;
  int64_t num_prefill_tokens;
} megamla_batch_split;

/* Requests are ordered decodes first. threshold = 1 + speculative tokens. All decode if no query is longer than the
 * threshold; all prefill if the first is longer; else the first longer one starts the prefills. query_lens [R], each >=
 * 0. */
MEGAMLA_API megamla_status megamla_split_batch(const int32_t* query_lens, int64_t num_requests, int64_t threshold,
                                               megamla_batch_split* split);

typedef struct megamla_prefill_chunk {
  int64_t start; /* first request of the chunk */
  int64_t end;   /* one past its last */
  int64_t n;     /* largest number of compressed rows of its requests */
  int64_t m;     /* n + largest number of window rows: workspace rows per request */
} megamla_prefill_chunk;

typedef struct megamla_prefill_chunk_plan_params {
  size_t struct_size;
  const int32_t* seq_lens;   /* [R], with the new tokens */
  const int32_t* query_lens; /* [R] */
  int64_t num_requests;
  int64_t compress_ratio; /* 0, 1 or 2 */
  int64_t has_compressed; /* 0 or 1 */
  int64_t chunk_size;     /* 4 in the contract */
  int64_t window;
  int64_t max_model_len;
  int64_t max_num_batched_tokens;
} megamla_prefill_chunk_plan_params;

/* Fills a struct with zeros, its size, chunk_size 4 and window 128. */
MEGAMLA_API void megamla_prefill_chunk_plan_init(megamla_prefill_chunk_plan_params* params);
/* chunks: room for num_requests entries; *num_chunks: how many were written. */
MEGAMLA_API megamla_status megamla_prefill_chunk_plan(const megamla_prefill_chunk_plan_params* params,
                                                      megamla_prefill_chunk* chunks, int64_t* num_chunks);

/* Ratio 2: slot_mapping I64 [tokens] = table[r, g / states] * states + g % states with g = pos / 2 where (pos + 1) % 2
 * == 0, else -1 (also for a negative entry, a column >= nb, and tokens past the last query). All tensors in host
 * memory. */
MEGAMLA_API megamla_status megamla_compressed_slot_mapping(const megamla_tensor* query_start_loc,
                                                           const megamla_tensor* seq_lens,
                                                           const megamla_tensor* block_table, int64_t states_per_page,
                                                           const megamla_tensor* slot_mapping);

#ifdef __cplusplus
}
#endif
#endif
