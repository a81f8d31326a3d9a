#include "cpu/rms_norm.hpp"

#include "core/tensor.hpp"
#include "core/threads.hpp"
#include "cpu/norm_row.hpp"

namespace megamla::cpu {
namespace {

template <class T>
void norm_rows(const megamla_rms_norm_params& p, int64_t begin, int64_t end) {
  for (int64_t t = begin; t < end; ++t) {
    norm_row(&at<const T>(p.x, t, 0), data<const format::Bf16>(p.weight), p.x.shape[1], p.eps,
             &at<format::Bf16>(p.y, t, 0));
  }
}

}  // namespace

Status rms_norm(const megamla_rms_norm_params& p, const megamla_exec& exec) {
  parallel_ranges(p.x.shape[0], resolve_threads(exec.num_threads), [&](int64_t begin, int64_t end, int) {
    p.x.dtype == MEGAMLA_F32 ? norm_rows<float>(p, begin, end) : norm_rows<format::Bf16>(p, begin, end);
  });
  return {};
}

}  // namespace megamla::cpu
