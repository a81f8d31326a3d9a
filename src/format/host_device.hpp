// src/format/ is the only place that knows a byte offset. Everything in it compiles for host and device alike.
#pragma once

#if defined(__CUDACC__)
#define MEGAMLA_HD __host__ __device__
#else
#define MEGAMLA_HD
#endif
