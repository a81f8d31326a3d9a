#include "arena.hpp"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <new>

#include "core/tensor.hpp"

namespace megamla::app {

void Arena::Free::operator()(void* p) const { std::free(p); }

void* Arena::bytes(int64_t count, uint8_t fill) {
  constexpr size_t kAlignment = 256;
  if (count < 0 || count > left_) throw std::bad_alloc();
  left_ -= count;
  const size_t size = static_cast<size_t>(std::max<int64_t>(count, 1));
  void* block = nullptr;
  if (posix_memalign(&block, kAlignment, size) != 0) throw std::bad_alloc();
  blocks_.emplace_back(block);
  std::memset(block, fill, size);
  return block;
}

megamla_tensor Arena::tensor(megamla_dtype dtype, std::initializer_list<int64_t> shape, uint8_t fill) {
  int64_t size = megamla_dtype_size(dtype);
  for (const int64_t extent : shape) {
    if (extent < 0 || __builtin_mul_overflow(size, extent, &size)) throw std::bad_alloc();
  }
  megamla_tensor t = host_tensor(bytes(size, fill), dtype, shape);
  t.cuda_device = cuda_device();
  return t;
}

}  // namespace megamla::app
