/* The small index transforms between an engine's metadata and the attention ops' lists. Contract sections 8 and 14: an
 * index, request or column out of range is invalid (-1), never an access. */
#ifndef MEGAMLA_INDEX_OPS_H
#define MEGAMLA_INDEX_OPS_H

#include "megamla/types.h"

#ifdef __cplusplus
extern "C" {
#endif

/* topk_to_slots: request-local compressed positions -> slots of the paged cache. */
typedef struct megamla_topk_to_slots_params {
  size_t struct_size;
  megamla_tensor topk;           /* I32 [n, K], row stride free; negative = none */
  megamla_tensor token_to_req;   /* I32 [n] */
  megamla_tensor is_valid_token; /* U8 [n]; absent: all valid */
  megamla_tensor block_table;    /* I32 [R, nb], row stride free */
  int64_t slots_per_page;        /* >= 1 */
  int64_t num_pages;             /* pages of the cache; table entries at or beyond it are invalid. 0 = not checked */
  megamla_tensor slots;          /* out I32 [n, K]: table[req, l / s] * s + l % s, or -1; order kept */
  megamla_tensor
      lens; /* out I32 [n]: number of slots >= 0 (not compacted: callers put -1 last); 0 for an invalid token */
} megamla_topk_to_slots_params;

MEGAMLA_API void megamla_topk_to_slots_init(megamla_topk_to_slots_params* params);
MEGAMLA_API megamla_status megamla_topk_to_slots_supports(const megamla_topk_to_slots_params* params,
                                                          megamla_device device);
MEGAMLA_API megamla_status megamla_topk_to_slots_implementation(const megamla_topk_to_slots_params* params,
                                                                megamla_device device, const char** name);
/* No workspace: 0 on every device. */
MEGAMLA_API megamla_status megamla_topk_to_slots_workspace_size(const megamla_limits* limits, megamla_device device,
                                                                int64_t* bytes);
MEGAMLA_API megamla_status megamla_topk_to_slots(const megamla_topk_to_slots_params* params, const megamla_exec* exec);

/* combine_topk_swa: the rows of a prefill chunk's gathered workspace that each of its tokens attends to. */
typedef struct megamla_combine_topk_swa_params {
  size_t struct_size;
  megamla_tensor topk;            /* I32 [rows, K], row stride free: compressed positions per token of the chunk */
  megamla_tensor query_start_loc; /* I32 [R + 1], its first element is subtracted */
  megamla_tensor seq_lens;        /* I32 [R] */
  megamla_tensor gather_lens;     /* I32 [R]: gathered window rows of each request */
  int64_t window;                 /* >= 1 */
  int64_t compress_ratio;         /* 0, 1 or 2 */
  int64_t m;                      /* rows of the workspace per request */
  int64_t n;                      /* of these, rows before the window rows (compressed rows) */
  megamla_tensor indices;         /* out I32 [rows, W], W = K + window rounded up to a multiple of 128 */
  megamla_tensor lens;            /* out I32 [rows]; rows past the last token: all -1, length 0 */
} megamla_combine_topk_swa_params;

MEGAMLA_API void megamla_combine_topk_swa_init(megamla_combine_topk_swa_params* params);
MEGAMLA_API megamla_status megamla_combine_topk_swa_supports(const megamla_combine_topk_swa_params* params,
                                                             megamla_device device);
MEGAMLA_API megamla_status megamla_combine_topk_swa_implementation(const megamla_combine_topk_swa_params* params,
                                                                   megamla_device device, const char** name);
/* No workspace: 0 on every device. */
MEGAMLA_API megamla_status megamla_combine_topk_swa_workspace_size(const megamla_limits* limits, megamla_device device,
                                                                   int64_t* bytes);
MEGAMLA_API megamla_status megamla_combine_topk_swa(const megamla_combine_topk_swa_params* params,
                                                    const megamla_exec* exec);

/* swa_metadata: window slots of decode tokens, token -> request, valid tokens, gather lengths of prefills. */
typedef struct megamla_swa_metadata_params {
  size_t struct_size;
  megamla_tensor query_start_loc; /* I32 [R + 1] */
  megamla_tensor seq_lens;        /* I32 [R] */
  megamla_tensor slot_mapping;    /* I64 [tokens], padding included; negative: invalid or padding token */
  megamla_tensor block_table;     /* I32 [R, nb] of the window cache */
  megamla_tensor replay_start;    /* I32 [R] or absent: no position before it is listed (bounded replay) */
  int64_t page_size;              /* window slots per page, >= 1 */
  int64_t num_pages;   /* pages of the window cache; table entries at or beyond it are invalid. 0 = not checked */
  int64_t window;      /* >= 1 */
  int64_t num_decodes; /* the first requests are decodes, 0 .. R */
  int32_t causal;   /* 0: draft block, every token of a request sees positions max(0, prefix - window) .. seq_len - 1 */
  int32_t reserved; /* 0 */
  megamla_tensor is_valid_token;     /* out U8 [tokens] */
  megamla_tensor token_to_req;       /* out I32 [real tokens] (tokens of all queries; longer: the rest is -1) */
  megamla_tensor decode_swa_indices; /* out I32 [num_decode_tokens, width], row stride free; slots ascending by
                                        position, then -1 */
  megamla_tensor
      decode_swa_lens; /* out I32 [tokens]; 0 for invalid tokens and past the decode tokens; clamped to width */
  megamla_tensor prefill_gather_lens; /* out I32 [R - num_decodes] */
} megamla_swa_metadata_params;

MEGAMLA_API void megamla_swa_metadata_init(megamla_swa_metadata_params* params);
MEGAMLA_API megamla_status megamla_swa_metadata_supports(const megamla_swa_metadata_params* params,
                                                         megamla_device device);
MEGAMLA_API megamla_status megamla_swa_metadata_implementation(const megamla_swa_metadata_params* params,
                                                               megamla_device device, const char** name);
/* No workspace: 0 on every device. */
MEGAMLA_API megamla_status megamla_swa_metadata_workspace_size(const megamla_limits* limits, megamla_device device,
                                                               int64_t* bytes);
MEGAMLA_API megamla_status megamla_swa_metadata(const megamla_swa_metadata_params* params, const megamla_exec* exec);

#ifdef __cplusplus
}
#endif
#endif
