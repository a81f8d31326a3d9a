/* The C boundary as a C99 caller meets it: struct sizes of older and newer callers, init functions, last error. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "megamla/megamla.h"

static int failures = 0;

static void expect(int holds, const char* what, int line) {
  if (holds) return;
  fprintf(stderr, "%s:%d: %s (last error: %s)\n", __FILE__, line, what, megamla_last_error());
  ++failures;
}
#define EXPECT(CONDITION) expect((CONDITION) != 0, #CONDITION, __LINE__)
#define EXPECT_REFUSED(STATUS, CALL, WORD)                \
  do {                                                    \
    EXPECT((CALL) == (STATUS));                           \
    EXPECT(strstr(megamla_last_error(), (WORD)) != NULL); \
  } while (0)

static megamla_tensor view(void* data, megamla_dtype dtype, int64_t rows, int64_t columns) {
  megamla_tensor t;
  memset(&t, 0, sizeof(t));
  t.data = data;
  t.dtype = dtype;
  t.cuda_device = -1;
  t.ndim = columns > 0 ? 2 : 1;
  t.shape[0] = rows;
  t.shape[1] = columns;
  t.stride[0] = columns > 0 ? columns : 1;
  t.stride[1] = columns > 0 ? 1 : 0;
  return t;
}

/* Init overwrites whatever was there, sets the size, and leaves every tensor absent. */
#define EXPECT_INIT(NAME)                                                                       \
  do {                                                                                          \
    megamla_##NAME##_params params;                                                             \
    memset(&params, 0xa5, sizeof(params));                                                      \
    megamla_##NAME##_init(&params);                                                             \
    EXPECT(params.struct_size == sizeof(params));                                               \
    EXPECT(megamla_##NAME##_supports(&params, MEGAMLA_DEVICE_CPU) == MEGAMLA_INVALID_ARGUMENT); \
    EXPECT(strncmp(megamla_last_error(), #NAME ": ", sizeof(#NAME ": ") - 1) == 0);             \
    EXPECT_REFUSED(MEGAMLA_INVALID_ARGUMENT, megamla_##NAME(NULL, NULL), "NULL");               \
  } while (0)

static void every_op_initialises_its_struct(void) {
  EXPECT_INIT(block_scaled_linear);
  EXPECT_INIT(combine_topk_swa);
  EXPECT_INIT(decode_attention);
  EXPECT_INIT(kv_compress);
  EXPECT_INIT(kv_gather);
  EXPECT_INIT(kv_insert);
  EXPECT_INIT(output_cast);
  EXPECT_INIT(permute_weights);
  EXPECT_INIT(prefill_attention);
  EXPECT_INIT(rms_norm);
  EXPECT_INIT(rope_table);
  EXPECT_INIT(swa_metadata);
  EXPECT_INIT(topk_to_slots);
}

static void other_structs_are_initialised(void) {
  megamla_layer_config config;
  megamla_forward_params forward;
  megamla_step_metadata metadata;
  megamla_layer_taps taps;
  megamla_prefill_chunk_plan_params plan;
  memset(&config, 0xa5, sizeof(config));
  memset(&forward, 0xa5, sizeof(forward));
  memset(&metadata, 0xa5, sizeof(metadata));
  memset(&taps, 0xa5, sizeof(taps));
  memset(&plan, 0xa5, sizeof(plan));
  megamla_layer_config_init(&config);
  megamla_forward_params_init(&forward);
  megamla_step_metadata_init(&metadata);
  megamla_layer_taps_init(&taps);
  megamla_prefill_chunk_plan_init(&plan);
  EXPECT(config.struct_size == sizeof(config) && config.hidden_size == 5120 && config.tp_size == 1);
  EXPECT(megamla_layer_is_supported(&config, MEGAMLA_DEVICE_CPU) == MEGAMLA_OK);
  EXPECT(forward.struct_size == sizeof(forward) && forward.metadata == NULL && forward.workspace == NULL);
  EXPECT(metadata.struct_size == sizeof(metadata) && metadata.topk.ndim == 0);
  EXPECT(taps.struct_size == sizeof(taps) && taps.z.ndim == 0);
  EXPECT(plan.struct_size == sizeof(plan) && plan.chunk_size == 4 && plan.window == 128);
}

/* A caller compiled against another version of the header: shorter structs mean absent fields, longer ones are taken
 * only while what the library does not know is zero. */
typedef struct newer_params {
  megamla_rope_table_params known;
  int64_t added;
} newer_params;

static void struct_sizes_of_other_versions(void) {
  float table[2 * 64];
  newer_params newer;
  megamla_rope_table_params older;
  megamla_exec exec = MEGAMLA_EXEC_INIT;
  memset(&newer, 0, sizeof(newer));
  megamla_rope_table_init(&newer.known);
  newer.known.cos_sin = view(table, MEGAMLA_F32, 2, 64);
  newer.known.struct_size = sizeof(newer);
  EXPECT(megamla_rope_table(&newer.known, &exec) == MEGAMLA_OK);
  EXPECT(table[0] == 1.0F && table[32] == 0.0F && fabs(table[64] - cos(1.0)) < 1e-7);
  newer.added = 7;
  EXPECT_REFUSED(MEGAMLA_UNSUPPORTED, megamla_rope_table(&newer.known, &exec), "older than its caller");

  /* inv_freq is the last field: a caller that does not know it has garbage there, which is not read. */
  memset(&older, 0xa5, sizeof(older));
  memcpy(&older, &newer.known, offsetof(megamla_rope_table_params, inv_freq));
  older.struct_size = offsetof(megamla_rope_table_params, inv_freq);
  table[0] = 0.0F;
  EXPECT(megamla_rope_table(&older, &exec) == MEGAMLA_OK);
  EXPECT(table[0] == 1.0F);
  older.struct_size = 0;
  EXPECT_REFUSED(MEGAMLA_INVALID_ARGUMENT, megamla_rope_table(&older, &exec), "params.struct_size");
  older.struct_size = sizeof(older) * 100000;
  EXPECT_REFUSED(MEGAMLA_INVALID_ARGUMENT, megamla_rope_table(&older, &exec), "params.struct_size");

  newer.known.struct_size = sizeof(newer.known);
  exec.struct_size = 0;
  EXPECT_REFUSED(MEGAMLA_INVALID_ARGUMENT, megamla_rope_table(&newer.known, &exec), "exec.struct_size");
}

static void errors_name_argument_expected_and_actual(void) {
  float table[2 * 64];
  megamla_rope_table_params params;
  megamla_limits limits = MEGAMLA_LIMITS_INIT;
  const char* name = NULL;
  int64_t bytes = -1;
  char kept[256];
  megamla_rope_table_init(&params);
  params.cos_sin = view(table, MEGAMLA_F64, 2, 64);
  EXPECT_REFUSED(MEGAMLA_INVALID_ARGUMENT, megamla_rope_table(&params, NULL), "rope_table: cos_sin: expected F32");
  snprintf(kept, sizeof(kept), "%s", megamla_last_error());
  params.cos_sin = view(table, MEGAMLA_F32, 2, 64);
  EXPECT(megamla_rope_table(&params, NULL) == MEGAMLA_OK);
  EXPECT(strcmp(kept, megamla_last_error()) == 0); /* a call that succeeds leaves the message */
  EXPECT_REFUSED(MEGAMLA_INVALID_ARGUMENT, megamla_rope_table_supports(&params, (megamla_device)9), "device");
  EXPECT_REFUSED(MEGAMLA_INVALID_ARGUMENT, megamla_rope_table_implementation(&params, MEGAMLA_DEVICE_CPU, NULL),
                 "name");
  EXPECT(megamla_rope_table_implementation(&params, MEGAMLA_DEVICE_REFERENCE, &name) == MEGAMLA_OK);
  EXPECT(name != NULL && strncmp(name, "reference", 9) == 0);
  EXPECT_REFUSED(MEGAMLA_INVALID_ARGUMENT, megamla_rope_table_workspace_size(&limits, MEGAMLA_DEVICE_CPU, NULL),
                 "bytes");
  limits.tokens = -1;
  EXPECT_REFUSED(MEGAMLA_INVALID_ARGUMENT, megamla_rope_table_workspace_size(&limits, MEGAMLA_DEVICE_CPU, &bytes),
                 "limits.tokens");
}

static void nothing_is_written_on_a_refusal(void) {
  float table[2 * 64];
  size_t i;
  int untouched = 1;
  megamla_rope_table_params params;
  memset(table, 0xa5, sizeof(table));
  megamla_rope_table_init(&params);
  params.cos_sin = view(table, MEGAMLA_F32, 2, 64);
  params.theta = -1.0;
  EXPECT_REFUSED(MEGAMLA_INVALID_ARGUMENT, megamla_rope_table(&params, NULL), "theta");
  for (i = 0; i < sizeof(table); ++i) untouched &= ((unsigned char*)table)[i] == 0xa5;
  EXPECT(untouched);
}

int main(void) {
  EXPECT(strcmp(megamla_last_error(), "") == 0);
  every_op_initialises_its_struct();
  other_structs_are_initialised();
  struct_sizes_of_other_versions();
  errors_name_argument_expected_and_actual();
  nothing_is_written_on_a_refusal();
  if (failures > 0) fprintf(stderr, "%d failed\n", failures);
  return failures == 0 ? 0 : 1;
}
