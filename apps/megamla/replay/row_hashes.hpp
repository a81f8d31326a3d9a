// A hash of every result row of a replay: two replays are compared bit for bit without keeping their rows.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "megamla/types.h"
#include "replay/scheduler.hpp"

namespace megamla::replay {

struct Comparison {
  int64_t rows = 0;  // rows of requests, times layers
  int64_t differing = 0;
  std::string first_difference;
};

class RowHashes {
 public:
  // Room for every row from the beginning, so that a long replay does not grow.
  RowHashes(const std::vector<Request>& requests, int64_t layers);

  // The step's rows of y BF16 [T, n] of one layer. Request ids are indices.
  void note(int64_t layer, const std::vector<Scheduled>& step, const megamla_tensor& y);
  // Rows of the request that both have; a row that a shared prefix saved from being computed is in one of them alone.
  void compare(const RowHashes& other, int64_t request, Comparison* result) const;

 private:
  std::vector<uint64_t>& rows_of(int64_t request, int64_t layer) {
    return hashes_[static_cast<size_t>(request * layers_ + layer)];
  }

  int64_t layers_;
  std::vector<std::vector<uint64_t>> hashes_;  // [request, layer][position]; 0: not computed
};

}  // namespace megamla::replay
