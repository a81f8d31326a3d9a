/* MegaMLA C ABI: the types that every op shares.
 *
 * Rules of the ABI:
 *  - every struct begins with `struct_size`, set by its `..._init` function or macro; a library newer than its caller
 *    reads only the fields the caller knew;
 *  - every call returns a `megamla_status`; `megamla_last_error()` then names argument, expected and actual value;
 *  - nothing is allocated on the caller's behalf, no stream is created, no exception crosses this boundary;
 *  - strides are in elements (bytes for the paged caches) and 64 bits wide;
 *  - an enumeration that is passed by value ends with a ..._FORCE_INT: no real value, but with it every int is one that
 *    the type can hold, in C and in C++, so that an unknown one can be refused.
 */
#ifndef MEGAMLA_TYPES_H
#define MEGAMLA_TYPES_H

#include <stddef.h>
#include <stdint.h>

#if defined(_WIN32)
#define MEGAMLA_API
#else
#define MEGAMLA_API __attribute__((visibility("default")))
#endif

#define MEGAMLA_VERSION_MAJOR 0
#define MEGAMLA_VERSION_MINOR 1
#define MEGAMLA_VERSION_PATCH 0

#ifdef __cplusplus
extern "C" {
#endif

typedef enum megamla_status {
  MEGAMLA_OK = 0,
  MEGAMLA_INVALID_ARGUMENT = 1, /* an argument breaks the op's contract; nothing was written */
  MEGAMLA_UNSUPPORTED = 2, /* valid, but no implementation on this device covers it; the message says what is missing */
  MEGAMLA_WORKSPACE_TOO_SMALL = 3, /* the message names the needed and the present size */
  MEGAMLA_IO_ERROR = 4,            /* a file: what, where, expected, found */
  MEGAMLA_RUNTIME_ERROR = 5,       /* the device or a dependency failed (CUDA, oneDNN, out of memory) */
  MEGAMLA_STATUS_FORCE_INT = -0x7fffffff - 1
} megamla_status;

/* Message of the last call on this thread that did not return MEGAMLA_OK ("" before the first). Valid until the next
 * failing call on this thread. */
MEGAMLA_API const char* megamla_last_error(void);
/* "ok", "invalid argument", ... */
MEGAMLA_API const char* megamla_status_name(megamla_status status);
/* "0.1.0" */
MEGAMLA_API const char* megamla_version(void);

typedef enum megamla_device {
  MEGAMLA_DEVICE_AUTO = 0,      /* cuda for tensors in GPU memory, else cpu */
  MEGAMLA_DEVICE_REFERENCE = 1, /* double precision, plain loops */
  MEGAMLA_DEVICE_CPU = 2,
  MEGAMLA_DEVICE_CUDA = 3,
  MEGAMLA_DEVICE_FORCE_INT = -0x7fffffff - 1
} megamla_device;

typedef enum megamla_dtype {
  MEGAMLA_U8 = 0,
  MEGAMLA_I32 = 1,
  MEGAMLA_I64 = 2,
  MEGAMLA_F32 = 3,
  MEGAMLA_F64 = 4,
  MEGAMLA_BF16 = 5,
  MEGAMLA_F8_E4M3 = 6, /* e4m3fn */
  MEGAMLA_F8_E8M0 = 7, /* ue8m0 scale: 2^(byte-127), 0xff NaN */
  MEGAMLA_DTYPE_FORCE_INT = -0x7fffffff - 1
} megamla_dtype;

/* Bytes of one element (1, 4, 8, 4, 8, 2, 1, 1); 0 for an unknown dtype. */
MEGAMLA_API int64_t megamla_dtype_size(megamla_dtype dtype);
/* "U8", "BF16", ...: the safetensors names. "?" for an unknown dtype. */
MEGAMLA_API const char* megamla_dtype_name(megamla_dtype dtype);

#define MEGAMLA_MAX_DIMS 4

/* A view of caller-owned memory. data == NULL with ndim == 0 means "absent" (only where the op says that it may be). A
 * tensor with a dimension of 0 is present and empty; its data may be NULL. */
typedef struct megamla_tensor {
  void* data;
  int32_t dtype;       /* megamla_dtype */
  int32_t ndim;        /* 0 .. MEGAMLA_MAX_DIMS */
  int32_t cuda_device; /* -1: host memory; >= 0: memory of that CUDA device */
  int32_t reserved;    /* 0 */
  int64_t shape[MEGAMLA_MAX_DIMS];
  int64_t stride[MEGAMLA_MAX_DIMS]; /* in elements */
} megamla_tensor;

/* KV records (contract section 3). */
typedef enum megamla_kv_format {
  MEGAMLA_KV_NONE = 0,      /* no such cache */
  MEGAMLA_KV_FP8_528 = 1,   /* 512 e4m3, 16 ue8m0 (one per 32 dims) */
  MEGAMLA_KV_NVFP4_288 = 2, /* 512 e2m1 in 256 bytes, 32 e4m3 scales (one per 16 dims) */
  MEGAMLA_KV_FP8_584 = 3    /* 448 e4m3 + 64 bf16, 7 ue8m0 (one per 64 dims) + 1 pad byte */
} megamla_kv_format;

typedef enum megamla_page_layout {
  MEGAMLA_PAGE_PLANAR = 0,     /* all data rows of a page, then all its scale rows */
  MEGAMLA_PAGE_INTERLEAVED = 1 /* record after record (fp8_528 and nvfp4_288 only) */
} megamla_page_layout;

/* A paged cache: page b begins at data + b * page_stride. Slot id s = page s / page_size, row s % page_size; num_pages
 * * page_size slots in all. data and page_stride are multiples of 16 bytes. Several layers may share one pool: their
 * caches then have different `data` and the same page_stride, and no byte outside a cache's own records is ever
 * touched. format NONE = absent, all else ignored. */
typedef struct megamla_kv_cache {
  void* data;
  int64_t num_pages;
  int64_t page_stride; /* bytes, >= page_size * record bytes */
  int64_t page_size;   /* slots per page, >= 1 */
  int32_t format;      /* megamla_kv_format */
  int32_t layout;      /* megamla_page_layout */
  int32_t cuda_device; /* as in megamla_tensor */
  int32_t reserved;    /* 0 */
} megamla_kv_cache;

struct CUstream_st;

/* Where and with what an op runs. NULL in place of it = automatic device, all cores, no workspace. */
typedef struct megamla_exec {
  size_t struct_size;
  int32_t device;             /* megamla_device */
  int32_t num_threads;        /* CPU and reference: 0 = all cores. Results do not depend on it. */
  struct CUstream_st* stream; /* CUDA: the stream that the work is put on (NULL = default stream) */
  void* workspace;            /* 256-byte aligned, memory of the device; contents undefined before and after */
  int64_t workspace_bytes;    /* at least the op's workspace_size for limits that cover this call */
} megamla_exec;

#define MEGAMLA_EXEC_INIT \
  { sizeof(megamla_exec), MEGAMLA_DEVICE_AUTO, 0, 0, 0, 0 }

/* The largest shapes a caller will use. An op's workspace_size(limits) covers every call within them; each op reads
 * only the fields its header names. Negative values are refused. */
typedef struct megamla_limits {
  size_t struct_size;
  int64_t tokens;           /* T */
  int64_t heads;            /* H of the buffers */
  int64_t window_width;     /* W, columns of the window list */
  int64_t compressed_width; /* K, columns of the compressed list; keys per token for prefill_attention */
  int64_t groups;           /* block_scaled_linear: groups in one call */
  int64_t in_features;      /* block_scaled_linear: per group */
  int64_t out_features;     /* block_scaled_linear: per group */
  int64_t num_threads;      /* CPU: 0 = all cores of this machine */
} megamla_limits;

#define MEGAMLA_LIMITS_INIT \
  { sizeof(megamla_limits), 0, 0, 0, 0, 0, 0, 0, 0 }

#ifdef __cplusplus
}
#endif
#endif
