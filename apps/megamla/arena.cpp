#include "arena.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <new>

#include "command.hpp"
#include "core/tensor.hpp"
#include "gpu.hpp"

namespace megamla::app {
namespace {

// Uninitialised.
char* allocate(size_t size, Pages pages) {
  constexpr size_t kAlignment = 256;
  constexpr size_t kHugePage = size_t{2} << 20;
  void* block = nullptr;
  const bool huge = pages == Pages::kHuge && size >= kHugePage;
  if (posix_memalign(&block, huge ? kHugePage : kAlignment, size) != 0) throw std::bad_alloc();
#ifdef MADV_HUGEPAGE
  if (huge) madvise(block, size / kHugePage * kHugePage, MADV_HUGEPAGE);  // a refusal changes nothing
#endif
  return static_cast<char*>(block);
}

}  // namespace

void Arena::FreeHost::operator()(char* p) const { std::free(p); }
void Arena::FreeDevice::operator()(char* p) const { gpu::release(p); }

Arena::Arena(megamla_device device, int64_t limit, Pages pages)
    : cuda_device_(device == MEGAMLA_DEVICE_CUDA ? gpu::device() : -1), pages_(pages), left_(limit) {}

Arena::Arena(Arena* outer) : cuda_device_(outer->cuda_device_), pages_(outer->pages_), outer_(outer) {}

void* Arena::bytes(int64_t count, uint8_t fill) {
  if (count < 0 || count > left_) throw std::bad_alloc();
  left_ -= count;
  const size_t size = static_cast<size_t>(std::max<int64_t>(count, 1));
  char* block = allocate(size, pages_);
  Buffer buffer;
  buffer.host.reset(block);
  buffer.bytes = count;
  buffers_.emplace(buffer.host.get(), std::move(buffer));
  std::memset(block, fill, size);
  return block;
}

void* Arena::device_bytes(int64_t count) {
  if (cuda_device_ < 0) return bytes(count);
  device_only_.emplace_back(static_cast<char*>(gpu::allocate(count)));
  return device_only_.back().get();
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

void* Arena::on_device(void* pointer) {
  if (cuda_device_ < 0 || pointer == nullptr) return pointer;
  auto* address = static_cast<char*>(pointer);
  const auto after = buffers_.upper_bound(address);
  // A view of no bytes may begin at a buffer's end.
  if (after != buffers_.begin() && address <= std::prev(after)->first + std::prev(after)->second.bytes) {
    Buffer& buffer = std::prev(after)->second;
    if (buffer.twin == nullptr) {
      buffer.twin.reset(static_cast<char*>(gpu::allocate(buffer.bytes)));
      gpu::upload(buffer.twin.get(), buffer.host.get(), buffer.bytes);
    }
    return buffer.twin.get() + (address - buffer.host.get());
  }
  if (outer_ == nullptr) throw InputError("arena: expected memory of a buffer, got another pointer");
  return outer_->on_device(pointer);
}

void Arena::place(megamla_tensor& view) {
  if (view.ndim > 0 && view.cuda_device >= 0) view.data = on_device(view.data);
}
void Arena::place(megamla_kv_cache& view) {
  if (view.format != MEGAMLA_KV_NONE && view.cuda_device >= 0) view.data = on_device(view.data);
}

void Arena::upload() const {
  for (const auto& [address, buffer] : buffers_) {
    if (buffer.twin != nullptr) gpu::upload(buffer.twin.get(), address, buffer.bytes);
  }
}

void Arena::download() const {
  for (const auto& [address, buffer] : buffers_) {
    if (buffer.twin != nullptr) gpu::download(buffer.host.get(), buffer.twin.get(), buffer.bytes);
  }
}

void Arena::upload(const void* begin, int64_t count) {
  if (cuda_device_ < 0 || count == 0) return;
  gpu::upload(on_device(const_cast<void*>(begin)), begin, count);
}

void Arena::download(void* begin, int64_t count) {
  if (cuda_device_ < 0 || count == 0) return;
  gpu::download(begin, on_device(begin), count);
}

void Arena::enqueue_upload(const void* begin, int64_t count) {
  if (cuda_device_ < 0 || count == 0) return;
  gpu::enqueue_upload(on_device(const_cast<void*>(begin)), begin, count);
}

}  // namespace megamla::app
