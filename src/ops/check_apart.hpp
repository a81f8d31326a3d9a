// Outputs of an op share memory with nothing else of the call.
#pragma once

#include <initializer_list>

#include "core/validate.hpp"

namespace megamla::ops {

struct NamedTensor {
  const char* name;
  const megamla_tensor* tensor;
};

inline void check_apart(Validator& v, std::initializer_list<NamedTensor> outputs,
                        std::initializer_list<NamedTensor> inputs) {
  for (const NamedTensor* out = outputs.begin(); out != outputs.end(); ++out) {
    for (const NamedTensor& in : inputs) v.no_overlap(out->name, *out->tensor, in.name, *in.tensor);
    for (const NamedTensor* other = outputs.begin(); other != out; ++other) {
      v.no_overlap(out->name, *out->tensor, other->name, *other->tensor);
    }
  }
}

}  // namespace megamla::ops
