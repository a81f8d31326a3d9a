// Two rows of a tensor, the second more than 2^32 bytes and 2^31 elements from the first, over address space alone.
#pragma once

#include <algorithm>
#include <cstring>
#include <initializer_list>
#include <memory>
#include <vector>

#include "support/every_implementation.hpp"
#include "support/paged_cache.hpp"

namespace megamla::test {

class FarRows {
 public:
  static constexpr int64_t kStep = (int64_t{1} << 32) + 4096;  // bytes, enough for elements of two bytes

  // Of a tensor of two rows whose dimensions below the first are dense. `values`: the rows hold what `near` holds.
  // `copied`: a GPU gets the whole span and gives it back, so that kStep must do for every type.
  FarRows(const megamla_tensor& near, bool values, bool copied)
      : step_(copied ? kStep : std::max(kStep, (kStep / 2) * element_bytes(near))),
        memory_(step_ + (1 << 20)),
        view_(near) {
    const int64_t size = element_bytes(near);
    row_bytes_ = size;
    for (int d = 1; d < near.ndim; ++d) row_bytes_ *= near.shape[d];
    EXPECT_EQ(near.shape[0], 2);
    near_step_ = near.stride[0] * size;
    view_.data = memory_.data();
    view_.stride[0] = step_ / size;
    for (int64_t t = 0; values && t < 2; ++t) std::memcpy(row(t), near_row(near, t), static_cast<size_t>(row_bytes_));
  }

  const megamla_tensor& view() const { return view_; }
  bool has_rows_of(const megamla_tensor& near) const {
    for (int64_t t = 0; t < 2; ++t) {
      if (!same_bytes(row(t), near_row(near, t), row_bytes_)) return false;
    }
    return true;
  }

 private:
  static int64_t element_bytes(const megamla_tensor& t) {
    return megamla_dtype_size(static_cast<megamla_dtype>(t.dtype));
  }
  char* row(int64_t t) const { return static_cast<char*>(view_.data) + t * step_; }
  const char* near_row(const megamla_tensor& near, int64_t t) const {
    return static_cast<const char*>(near.data) + t * near_step_;
  }

  int64_t step_;
  SparseMemory memory_;
  megamla_tensor view_;
  int64_t row_bytes_ = 0;
  int64_t near_step_ = 0;
};

// A call of two rows gives the same bits where the rows of `inputs` and `outputs` lie far apart.
template <class Params, class Run>
void expect_same_bits_far_apart(const Params& near, std::initializer_list<megamla_tensor Params::*> inputs,
                                std::initializer_list<megamla_tensor Params::*> outputs, bool on_gpu, Run&& run) {
  expect_ok(run(near));
  Params far = near;
  std::vector<std::unique_ptr<FarRows>> rows;
  for (const auto& [fields, values] : {std::pair{inputs, true}, std::pair{outputs, false}}) {
    for (const auto field : fields) {
      rows.push_back(std::make_unique<FarRows>(near.*field, values, on_gpu));
      far.*field = rows.back()->view();
    }
  }
  expect_ok(run(far));
  auto written = rows.begin() + static_cast<std::ptrdiff_t>(inputs.size());
  for (const auto field : outputs)
    EXPECT_TRUE((*written++)->has_rows_of(near.*field)) << "output " << written - rows.begin();
}

}  // namespace megamla::test
