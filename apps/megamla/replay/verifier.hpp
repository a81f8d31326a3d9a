// Sampled rows of a replay against the double-precision reference: the same layer, weights and caches, on the reference
// device.
#pragma once

#include <random>
#include <vector>

#include "arena.hpp"
#include "replay/model.hpp"

namespace megamla::replay {

struct WorstErrors {
  int64_t rows = 0;      // sampled rows times layers
  double y_l2 = 0;       // ||y - ref|| / ||ref||, bound 2e-2
  double y_element = 0;  // share of |ref|/256 + 0.1 rms
  double record = 0;     // window record: share of the codec's bound around the reference's row
  int64_t longest_context = 0;
  bool holds = true;
  std::string first_failure;
};

class Verifier {
 public:
  // `rate`: share of the remaining rows that are sampled, beside each request's last row and each chunk's last row.
  Verifier(Model& model, double rate, uint64_t seed);

  // Rows of this step to check; drawn before its results are looked at.
  std::vector<int64_t> choose(const std::vector<Scheduled>& step);
  // Checks `rows` of the layer's y after the model ran the step.
  void check(const Model::Layer& layer, const std::vector<Scheduled>& step, const StepBatch& batch,
             const std::vector<int64_t>& rows);

  const WorstErrors& worst() const { return worst_; }

 private:
  struct Rows;  // the chosen rows as a batch of single-token requests
  Rows gather(const std::vector<Scheduled>& step, const StepBatch& batch, const std::vector<int64_t>& rows,
              app::Arena& arena) const;
  void fetch(const Model::Layer& layer, const megamla_step_metadata& m, const std::vector<int64_t>& rows);
  void compare_y(const Model::Layer& layer, const float* ref, const uint16_t* got, int64_t position);
  void compare_record(const Model::Layer& layer, const megamla_tensor& latent, int64_t index, int64_t position,
                      int64_t slot);
  void fail(const Model::Layer& layer, int64_t position, const std::string& what);

  Model& model_;
  double rate_;
  std::mt19937_64 random_;
  WorstErrors worst_;
  app::Arena workspace_memory_;
  WorkspaceHandle workspace_;
};

}  // namespace megamla::replay
