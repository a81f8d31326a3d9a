#include "replay/row_hashes.hpp"

#include <fmt/format.h>

#include <bit>
#include <cstring>

#include "core/tensor.hpp"

namespace megamla::replay {
namespace {

// Never 0. Every bit of the row counts, and its place.
uint64_t hash_row(const uint16_t* row, int64_t width) {
  uint64_t hash = 0x9E3779B97F4A7C15U;
  constexpr int64_t kWord = sizeof(uint64_t) / sizeof(uint16_t);
  for (int64_t i = 0; i < width; i += kWord) {
    uint64_t word = 0;
    std::memcpy(&word, row + i, static_cast<size_t>(std::min(kWord, width - i)) * sizeof(uint16_t));
    hash = std::rotl((hash ^ word) * 0xD1B54A32D192ED03U, 29);
  }
  return hash | 1U;
}

}  // namespace

RowHashes::RowHashes(const std::vector<Request>& requests, int64_t layers) : layers_(layers) {
  for (const Request& request : requests) {
    for (int64_t layer = 0; layer < layers; ++layer) hashes_.emplace_back(static_cast<size_t>(request.total()));
  }
}

void RowHashes::note(int64_t layer, const std::vector<Scheduled>& step, const megamla_tensor& y) {
  int64_t row = 0;
  for (const Scheduled& scheduled : step) {
    std::vector<uint64_t>& hashes = rows_of(scheduled.request->id, layer);
    for (int64_t i = 0; i < scheduled.query; ++i, ++row) {
      hashes[static_cast<size_t>(scheduled.request->computed + i)] =
          hash_row(&at<const uint16_t>(y, row, 0), y.shape[1]);
    }
  }
}

void RowHashes::compare(const RowHashes& other, int64_t request, Comparison* result) const {
  for (int64_t layer = 0; layer < layers_; ++layer) {
    const auto index = static_cast<size_t>(request * layers_ + layer);
    for (size_t position = 0; position < hashes_[index].size(); ++position) {
      const uint64_t mine = hashes_[index][position];
      const uint64_t theirs = other.hashes_[index][position];
      if (mine == 0 || theirs == 0) continue;
      ++result->rows;
      if (mine == theirs) continue;
      ++result->differing;
      if (result->first_difference.empty()) {
        result->first_difference =
            fmt::format("request {}, position {}, layer {} of the list", request, position, layer);
      }
    }
  }
}

}  // namespace megamla::replay
