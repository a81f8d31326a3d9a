// Sampled rows of a replay against the double-precision reference: the same layer, weights and caches, on the reference
// device.
#pragma once

#include <random>
#include <vector>

#include "arena.hpp"
#include "format/page.hpp"
#include "replay/model.hpp"
#include "replay/sampled_rows.hpp"

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
  // Takes `rows` of the step that the model has just run, in every layer, and first checks those that wait if they
  // would become too many.
  void keep(const std::vector<Scheduled>& step, const StepBatch& batch, const std::vector<int64_t>& rows);
  // Checks the rows that wait.
  void finish();

  const WorstErrors& worst() const { return worst_; }

 private:
  void check(const Model::Layer& layer, const SampledRows& rows);
  void compare_y(const Model::Layer& layer, const float* ref, const uint16_t* got, int64_t position);
  void compare_record(const Model::Layer& layer, const megamla_tensor& latent, int64_t position,
                      const format::SlotBytes<uint8_t>& stored);
  void fail(const Model::Layer& layer, int64_t position, const std::string& what);

  Model& model_;
  double rate_;
  std::mt19937_64 random_;
  std::vector<SampledRows> waiting_;  // of each layer
  uint64_t step_id_ = 0;
  WorstErrors worst_;
  app::Arena workspace_memory_;
  WorkspaceHandle workspace_;
};

}  // namespace megamla::replay
