#include "model/checkpoint_layer.hpp"

#include <cstring>
#include <vector>

#include "io/checkpoint.hpp"

namespace megamla {

Status load_checkpoint_layer(megamla_layer* layer, const std::string& folder, int64_t layer_id) {
  Result<io::Checkpoint> checkpoint = io::Checkpoint::open(folder);
  if (!checkpoint.ok()) return checkpoint.status();
  Result<io::LayerTensors> stored = checkpoint.value().layer(layer_id);
  if (!stored.ok()) return stored.status();
  // A mapped tensor may begin at any byte; the small ones of more than one byte an element are copied to where they are
  // aligned.
  std::vector<std::vector<char>> copies;
  std::vector<megamla_named_tensor> tensors;
  for (const io::LayerTensor& t : stored.value().tensors) {
    megamla_named_tensor named{t.name.c_str(), t.view};
    const int64_t size = megamla_dtype_size(static_cast<megamla_dtype>(t.view.dtype));
    if (reinterpret_cast<uintptr_t>(t.view.data) % static_cast<uintptr_t>(size) != 0) {
      int64_t bytes = size;
      for (int d = 0; d < t.view.ndim; ++d) bytes *= t.view.shape[d];
      const char* begin = static_cast<const char*>(t.view.data);
      copies.emplace_back(begin, begin + bytes);
      named.tensor.data = copies.back().data();
    }
    tensors.push_back(named);
  }
  const megamla_status status = megamla_layer_load(layer, tensors.data(), static_cast<int64_t>(tensors.size()));
  return status == MEGAMLA_OK ? Status{} : Status{status, megamla_last_error()};
}

}  // namespace megamla
