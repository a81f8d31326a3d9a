/* MegaAttentionLayer: one DeepSeek V4.1 attention layer on one tensor-parallel rank. Contract sections 12, 13 and 15.
 *
 *   x -> [qr | c] -> norms -> q, latent -> window insert (-> compressor -> compressed insert, on kv sources) ->
 * attention into the output pair
 *     -> wo_a -> z -> wo_b -> y
 *
 * Life of a layer: is_supported -> create -> load (again at any time: reload) -> forward without metadata (warm-up) ->
 * forward.
 */
#ifndef MEGAMLA_LAYER_H
#define MEGAMLA_LAYER_H

#include "megamla/communicator.h"
#include "megamla/types.h"
#include "megamla/workspace.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum megamla_prefill_path {
  MEGAMLA_PREFILL_AUTO = 0,     /* the rule is in docs/design.md */
  MEGAMLA_PREFILL_GATHERED = 1, /* gather both caches into bf16 rows of the workspace, then prefill_attention */
  MEGAMLA_PREFILL_PAGED = 2     /* decode_attention over the paged records: no gathered rows */
} megamla_prefill_path;

typedef enum megamla_layer_role {
  MEGAMLA_ROLE_WINDOW_ONLY = 0, /* compress_ratio 0 */
  MEGAMLA_ROLE_KV_SOURCE = 1,   /* computes and inserts compressed rows */
  MEGAMLA_ROLE_KV_CONSUMER = 2  /* reads the compressed rows of its kv source */
} megamla_layer_role;

typedef struct megamla_layer_config {
  size_t struct_size;
  int64_t layer_id;
  int64_t hidden_size;     /* 5120 */
  int64_t num_heads;       /* 64, of all ranks */
  int64_t head_dim;        /* 512, no other */
  int64_t rope_dim;        /* 64, no other */
  int64_t q_lora_rank;     /* 1280 */
  int64_t o_lora_rank;     /* 1024 */
  int64_t o_groups;        /* 8, of all ranks; num_heads / o_groups must be 8 */
  int64_t window;          /* 128 */
  int64_t index_topk;      /* 512 */
  int64_t compress_ratio;  /* 0, 1, 2 */
  int64_t kv_source_layer; /* layer whose compressed rows this one reads; == layer_id: a source; ignored for ratio 0 */
  float rms_norm_eps;      /* 1e-20 */
  float softmax_scale;     /* 512^-0.5 */
  int64_t tp_size;
  int64_t tp_rank;
  int64_t num_speculative_tokens; /* decode threshold is one more */
  int64_t max_model_len;
  int64_t max_num_batched_tokens;
  int64_t max_num_requests;
  int64_t prefill_chunk_size; /* 4: see prefill_chunk_plan */
  int32_t window_format;      /* megamla_kv_format, as megamla_resolve_kv_dtype gives them */
  int32_t compressed_format;  /* NONE for ratio 0 */
  int32_t prefill_path;       /* megamla_prefill_path */
  int32_t quantize_z;         /* not 0: z between wo_a and wo_b as MXFP8 */
  int32_t batch_invariant;    /* not 0: a row of y has the same bits whatever else is in the step and however prompts
                                 are cut into steps; prompts are read from the pages, not gathered */
  int32_t cuda_device;        /* a layer on cuda: the GPU that holds its weights and steps; else 0 */
} megamla_layer_config;

/* DeepSeek-V4.1-Flash, layer 0, TP 1. */
MEGAMLA_API void megamla_layer_config_init(megamla_layer_config* config);
/* Is it supported here, and if not why not: answers without constructing. MEGAMLA_OK, INVALID_ARGUMENT or UNSUPPORTED.
 */
MEGAMLA_API megamla_status megamla_layer_is_supported(const megamla_layer_config* config, megamla_device device);

/* What a backend can read, for an engine that chooses cache shapes ("backend traits"). */
typedef struct megamla_backend_traits {
  size_t struct_size;
  int32_t available;         /* 0: `device` is not in this build or on this machine */
  int32_t accepts_raw_query; /* 1: q before RoPE and without any engine-side norm */
  int32_t window_formats;    /* bit 1 << megamla_kv_format */
  int32_t compressed_formats;
  int32_t page_size_multiple;     /* cache page sizes must be a multiple of it */
  int32_t min_compute_capability; /* 0 on a CPU; 90 for SM90 */
  int32_t max_heads;
  int32_t reserved;
} megamla_backend_traits;
MEGAMLA_API megamla_status megamla_layer_backend_traits(megamla_device device, megamla_backend_traits* traits);

/* "auto", "fp8" -> the preferred packed formats (fp8_528 window, nvfp4_288 compressed); "fp8_528", "nvfp4_288",
 * "fp8_584" are honoured; what the device cannot read is refused by name. */
MEGAMLA_API megamla_status megamla_resolve_kv_dtype(const char* kv_dtype, megamla_device device,
                                                    megamla_kv_format* window, megamla_kv_format* compressed);
/* The one rule for tensor parallelism: MEGAMLA_OK if heads, groups and weight blocks divide; the message has the
 * numbers. */
MEGAMLA_API megamla_status megamla_layer_check_tensor_parallel(int64_t num_heads, int64_t o_groups, int64_t o_lora_rank,
                                                               int64_t tp_size, int64_t tp_rank);
/* MEGAMLA_OK if o_proj can pass z as MXFP8: (groups on this rank * o_lora_rank) % 128 == 0. */
MEGAMLA_API megamla_status megamla_layer_can_quantize_z(const megamla_layer_config* config);

/* The output pair of `tokens` tokens and `groups` groups in one block of memory (contract section 7): bytes needed, and
 * its two views. */
MEGAMLA_API int64_t megamla_output_pair_bytes(int64_t tokens, int64_t groups);
MEGAMLA_API megamla_status megamla_output_pair_views(void* memory, int64_t tokens, int64_t groups, int32_t cuda_device,
                                                     megamla_tensor* data, megamla_tensor* scale);
/* Token slice: tokens begin .. end-1 of a pair, same strides. */
MEGAMLA_API megamla_status megamla_output_pair_slice(const megamla_tensor* data, const megamla_tensor* scale,
                                                     int64_t begin, int64_t end, megamla_tensor* data_slice,
                                                     megamla_tensor* scale_slice);

/* The built-in top-k source: for the token at position p of a request, c = (p + 1) / ratio compressed keys are there.
 * Up to K of them: all, ascending. Beyond (documented stand-in for an indexer): the newest K/2, and K/2 spread evenly
 * over the older ones. topk: I32 [T, K], -1 last; positions I64 or I32 [T], negative = a row of -1. Host memory. */
MEGAMLA_API megamla_status megamla_builtin_topk(const megamla_tensor* positions, int64_t compress_ratio,
                                                const megamla_tensor* topk);

typedef struct megamla_layer megamla_layer;

/* Construction checks are those of is_supported. `device` decides where the weights live: in host memory (a layer that
 * runs on reference and cpu), or in that of the GPU config.cuda_device (a layer that runs on cuda). */
MEGAMLA_API megamla_status megamla_layer_create(const megamla_layer_config* config, megamla_device device,
                                                megamla_layer** layer);
MEGAMLA_API void megamla_layer_destroy(megamla_layer* layer);
MEGAMLA_API megamla_layer_role megamla_layer_get_role(const megamla_layer* layer);

typedef struct megamla_named_tensor {
  const char* name;      /* checkpoint name without "layers.N.attn.": "wq_b.weight", "wq_b.scale", "attn_sink", ... */
  megamla_tensor tensor; /* whole (all ranks), contiguous, host memory; read during the call only */
} megamla_named_tensor;

/* Takes this rank's part of the tensors and permutes it. A weight and its scale come in one call; different weights may
 * come in several, in any order, and again later (reload). Names of the section 15 that this layer does not use are
 * refused. Nothing changes on an error. */
MEGAMLA_API megamla_status megamla_layer_load(megamla_layer* layer, const megamla_named_tensor* tensors, int64_t count);
/* INVALID_ARGUMENT naming the first missing tensor, or OK. */
MEGAMLA_API megamla_status megamla_layer_is_loaded(const megamla_layer* layer);
MEGAMLA_API int64_t megamla_layer_weight_bytes(const megamla_layer* layer);
/* Largest workspace that a step within the config's limits can need (num_threads 0 = all cores). */
MEGAMLA_API megamla_status megamla_layer_workspace_size(const megamla_layer* layer, megamla_device device,
                                                        int64_t num_threads, int64_t* bytes);

/* A step's batch: R requests in row order, decodes first; rows after the last request are padding. All host memory on
 * reference and cpu; memory of the layer's GPU on cuda, except the two host_ copies, from which the CPU plans the step.
 *
 * A step of decodes alone (no query longer than 1 + num_speculative_tokens) can be captured in a CUDA graph: nothing of
 * what is put on the stream depends on a length, slot or table entry, so a replay follows what the device memory holds
 * then. A captured step has as many rows as its bucket; rows that a replay does not need have slot -1 in slot_mapping
 * and compressed_slot_mapping and, for ratio 2, a request of state block 0. Whatever else they hold, stale or not, they
 * write no cache and their y is 0. */
typedef struct megamla_step_metadata {
  size_t struct_size;
  megamla_tensor query_start_loc;         /* I32 [R + 1], first element 0 */
  megamla_tensor seq_lens;                /* I32 [R], with the new tokens */
  megamla_tensor positions;               /* I64 or I32 [T] */
  megamla_tensor slot_mapping;            /* I64 [T], window slots; negative: padding, or do not write */
  megamla_tensor window_table;            /* I32 [R, nb] */
  megamla_tensor compressed_slot_mapping; /* I64 [T]; sources only */
  megamla_tensor compressed_table;        /* I32 [R, nb]; ratio > 0 */
  megamla_tensor state_block;             /* I32 [R]; ratio 2 sources */
  megamla_tensor
      topk; /* I32 [T, K], request-local compressed positions, -1 last; ratio > 0. Absent: the built-in source */
  uint64_t step_id;                    /* differs from step to step; equal for the layers of one step */
  megamla_tensor host_query_start_loc; /* as query_start_loc, in host memory; cuda only, else absent or the same */
  megamla_tensor host_seq_lens;        /* as seq_lens, likewise */
} megamla_step_metadata;

/* Copies of intermediate results, for tests and verification. Each absent or of exactly this shape. */
typedef struct megamla_layer_taps {
  size_t struct_size;
  megamla_tensor qr;                /* BF16 [T, q_lora_rank] */
  megamla_tensor latent;            /* BF16 [T, 512] */
  megamla_tensor compressed_latent; /* BF16 [T, 512]; rows that close a group */
  megamla_tensor q;                 /* BF16 [T, H, 512] chunked, before RoPE */
  megamla_tensor lse;               /* F32 [T, H]; +inf in padding rows */
  megamla_tensor pair;              /* F8_E4M3 [T, G, 4096] */
  megamla_tensor pair_scale;        /* I32 [T, G, 32], strides (1, 32*A, A) */
  megamla_tensor z;                 /* BF16 [T, G, o_lora_rank]; refused with quantize_z */
} megamla_layer_taps;

/* What becomes of the ranks' parts of y. */
typedef enum megamla_layer_reduce {
  MEGAMLA_REDUCE_NONE = 0,    /* y is this rank's part: the caller sums */
  MEGAMLA_REDUCE_ALL = 1,     /* y is the sum, on every rank */
  MEGAMLA_REDUCE_SCATTER = 2, /* y BF16 [T / tp_size, hidden_size]: this rank's rows of the sum (sequence parallelism).
                                 T must be a multiple of tp_size; not with quantize_z */
  MEGAMLA_REDUCE_FORCE_INT = -0x7fffffff - 1
} megamla_layer_reduce;

typedef struct megamla_forward_params {
  size_t struct_size;
  megamla_tensor x;       /* BF16 [T, hidden_size] */
  megamla_tensor y;       /* BF16 or F32 [T, hidden_size], see `reduce`; rows of padding tokens are 0 */
  megamla_tensor cos_sin; /* F32 [P, 64]: the layer's own table (theta 10000 for ratio 0, else 160000 with YaRN) */
  megamla_kv_cache window;
  megamla_kv_cache compressed;     /* ratio > 0: the kv source's cache */
  megamla_tensor compressor_state; /* F32 [blocks, capacity, 1024]; ratio 2 sources */
  const megamla_step_metadata*
      metadata; /* NULL: warm-up. Reserves the workspace, writes zeros to the output pair and y, registers variants */
  const megamla_layer_taps* taps; /* NULL: none */
  megamla_workspace* workspace;   /* exec.workspace is not used by forward */
  int32_t skip_cache_writes;      /* not 0: caches and compressor state stay as they are, attention reads what is there
                                     (for verification of single rows) */
  int32_t reduce;                 /* megamla_layer_reduce */
  megamla_communicator* communicator; /* of tp_size ranks, this one with rank tp_rank, on the layer's GPU; NULL with
                                         REDUCE_NONE */
  struct CUstream_st* side_stream;    /* cuda: another stream of the caller, for the cache writers and lists, which need
                                         not wait for the query; what exec.stream gets afterwards waits for them.
                                         NULL: all on exec.stream */
} megamla_forward_params;

MEGAMLA_API void megamla_forward_params_init(megamla_forward_params* params);
MEGAMLA_API void megamla_step_metadata_init(megamla_step_metadata* metadata);
MEGAMLA_API void megamla_layer_taps_init(megamla_layer_taps* taps);
MEGAMLA_API megamla_status megamla_layer_forward(megamla_layer* layer, const megamla_forward_params* params,
                                                 const megamla_exec* exec);

/* Small-step kernel: few tokens, keys of a row split over the machine. MEGAMLA_OK if one serves this config on the
 * device, else the reason. */
MEGAMLA_API megamla_status megamla_layer_small_step_support(const megamla_layer_config* config, megamla_device device);
/* Kernel variants that warm-ups have registered in this process, each once however many layers share it. */
MEGAMLA_API int64_t megamla_warmed_variant_count(void);

#ifdef __cplusplus
}
#endif
#endif
