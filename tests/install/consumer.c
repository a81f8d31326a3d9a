/* A C99 caller of the installed library: version, support, a real op with checked numbers, a refusal with its message.
 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "megamla/rope_table.h"

#define ROWS 5

static int check(int holds, const char* what) {
  if (!holds) fprintf(stderr, "failed: %s (last error: %s)\n", what, megamla_last_error());
  return holds ? 0 : 1;
}

static megamla_tensor table_view(float* data) {
  megamla_tensor t;
  memset(&t, 0, sizeof(t));
  t.data = data;
  t.dtype = MEGAMLA_F32;
  t.ndim = 2;
  t.cuda_device = -1;
  t.shape[0] = ROWS;
  t.shape[1] = 64;
  t.stride[0] = 64;
  t.stride[1] = 1;
  return t;
}

int main(void) {
  float table[ROWS * 64];
  megamla_rope_table_params params;
  megamla_exec exec = MEGAMLA_EXEC_INIT;
  megamla_limits limits = MEGAMLA_LIMITS_INIT;
  const char* implementation = "";
  int64_t bytes = -1;
  int failures = 0;
  int row;
  int j;

  printf("MegaMLA %s\n", megamla_version());
  failures += check(strcmp(megamla_version(), EXPECTED_VERSION) == 0, "megamla_version() is the package's version");
  failures += check(megamla_dtype_size(MEGAMLA_BF16) == 2, "size of BF16");
  failures += check(strcmp(megamla_status_name(MEGAMLA_OK), "ok") == 0, "name of MEGAMLA_OK");

  megamla_rope_table_init(&params);
  params.cos_sin = table_view(table);
  failures += check(megamla_rope_table_supports(&params, MEGAMLA_DEVICE_CPU) == MEGAMLA_OK, "rope_table is supported");
  failures += check(megamla_rope_table_implementation(&params, MEGAMLA_DEVICE_CPU, &implementation) == MEGAMLA_OK,
                    "rope_table has an implementation");
  printf("rope_table -> %s\n", implementation);
  failures += check(strncmp(implementation, "cpu.", 4) == 0, "its name begins with cpu.");
  failures += check(megamla_rope_table_workspace_size(&limits, MEGAMLA_DEVICE_CPU, &bytes) == MEGAMLA_OK && bytes == 0,
                    "rope_table needs no workspace");

  exec.device = MEGAMLA_DEVICE_CPU;
  failures += check(megamla_rope_table(&params, &exec) == MEGAMLA_OK, "rope_table runs");
  for (row = 0; row < ROWS; ++row) {
    for (j = 0; j < 32; ++j) {
      const double angle = row * pow(params.theta, -2.0 * j / 64);
      failures += check(fabs(table[row * 64 + j] - cos(angle)) < 1e-7, "cosine");
      failures += check(fabs(table[row * 64 + 32 + j] - sin(angle)) < 1e-7, "sine");
    }
  }

  params.theta = 0.5;
  failures += check(megamla_rope_table(&params, &exec) == MEGAMLA_INVALID_ARGUMENT, "theta 0.5 is refused");
  failures += check(strstr(megamla_last_error(), "theta") != NULL, "the message names theta");
  printf("refused: %s\n", megamla_last_error());
  return failures == 0 ? 0 : 1;
}
