// Rows of a replay that wait for their check, with copies of all that it reads: the caches and results of a step are
// overwritten by later ones, while rows of several steps are cheaper to check together.
#pragma once

#include <unordered_map>
#include <vector>

#include "arena.hpp"
#include "replay/model.hpp"

namespace megamla::replay {

// Records copied out of a cache, into a cache of pages of one slot.
class KeptRecords {
 public:
  explicit KeptRecords(const megamla_kv_cache& from);
  // A step's record is copied once, whatever number of its rows reads it.
  void begin_step() { kept_.clear(); }
  // Where the record of `slot` is kept.
  int32_t keep(int64_t slot);
  megamla_kv_cache view() const;
  void clear();

 private:
  megamla_kv_cache from_;
  int64_t stride_;
  std::vector<char> bytes_;
  std::unordered_map<int64_t, int32_t> kept_;
};

// Of one layer.
class SampledRows {
 public:
  SampledRows(Model& model, const Model::Layer& layer);

  // Rows of the step that the model has just run.
  void add(const std::vector<Scheduled>& step, const StepBatch& batch, const std::vector<int64_t>& rows);
  void clear();

  int64_t count() const { return static_cast<int64_t>(rows_.size()); }
  int64_t position(int64_t i) const { return rows_[static_cast<size_t>(i)].position; }
  int64_t longest_context() const;
  const uint16_t* y(int64_t i) const { return rows_[static_cast<size_t>(i)].y.data(); }
  // Of the record that the step wrote for the row.
  int64_t window_slot(int64_t i) const { return rows_[static_cast<size_t>(i)].window.back().slot; }

  // The rows as a step of single-token requests, in memory of `arena` and of this.
  struct Views {
    megamla_step_metadata metadata;
    megamla_tensor x;
    megamla_kv_cache window;
    megamla_kv_cache compressed;
  };
  Views views(app::Arena& arena) const;

 private:
  // Key `index` of a request, and the slot of its record: in the layer's cache, later in the copy.
  struct Key {
    int64_t index;
    int64_t slot;
  };
  struct Row {
    int64_t position;
    std::vector<uint16_t> x;
    std::vector<uint16_t> y;
    std::vector<Key> window;  // the row's own is the last
    std::vector<Key> compressed;
  };
  void list_keys(const StepBatch& batch, const std::vector<int64_t>& owners, std::vector<Row>& rows) const;
  void fetch(const std::vector<Row>& rows);

  Model& model_;
  const Model::Layer& layer_;
  KeptRecords window_;
  KeptRecords compressed_;
  std::vector<Row> rows_;
};

}  // namespace megamla::replay
