// NVIDIA's matrix product in bf16, what block_scaled_linear is measured against. The library is opened at run time:
// nothing is linked, and where it is missing only this is refused.
#pragma once

#include <cstdint>
#include <memory>

namespace megamla::app::cublaslt {

// y[t, g, :] = w[g] x[t, g, :]: x bf16 [tokens, groups, in], w bf16 [groups, out, in], y bf16 [tokens, groups, out],
// all contiguous in the GPU's memory.
struct Shape {
  int64_t tokens, groups, in, out;
};

// The library's own first choice of a kernel for a shape. Throws InputError.
class Product {
 public:
  explicit Product(const Shape& shape);
  ~Product();
  Product(const Product&) = delete;
  Product& operator=(const Product&) = delete;
  // On the program's stream.
  void run(const void* x, const void* weight, void* y) const;

 private:
  struct Plan;
  std::unique_ptr<Plan> plan_;
};

}  // namespace megamla::app::cublaslt
