#include "cpu/rope_table.hpp"

#include "core/tensor.hpp"
#include "core/threads.hpp"
#include "plan/rope.hpp"

namespace megamla::cpu {

Status rope_table(const megamla_rope_table_params& p, const megamla_exec& exec) {
  const auto inv_freq = plan::rope_inverse_frequencies(p);
  const auto angles = static_cast<megamla_rope_angles>(p.angles);
  // A table of a million rows is 64 million sines: worth all cores.
  parallel_ranges(p.cos_sin.shape[0], resolve_threads(exec.num_threads), [&](int64_t begin, int64_t end, int) {
    for (int64_t row = begin; row < end; ++row) {
      const int64_t position = present(p.positions) ? at<const int64_t>(p.positions, row) : row;
      plan::rope_row(inv_freq, position, angles, &at<float>(p.cos_sin, row, 0));
    }
  });
  if (present(p.inv_freq)) {
    for (size_t j = 0; j < inv_freq.size(); ++j) at<double>(p.inv_freq, static_cast<int64_t>(j)) = inv_freq[j];
  }
  return {};
}

}  // namespace megamla::cpu
