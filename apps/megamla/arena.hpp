// Memory that the program hands to ops.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <map>
#include <memory>
#include <vector>

#include "megamla/types.h"

namespace megamla::app {

// What large host buffers lie on. Huge pages cost time when they are cleared, and spare the search for the page of
// every record that is read at random. Plain ones where the system has none.
enum class Pages { kPlain, kHuge };

// Buffers that an op works on and that the program fills and reads itself, freed together.
//
// They lie in host memory. For a GPU a buffer also gets a twin in device memory, made and filled when the buffer is
// first handed to an op (`place`); `upload` and `download` copy all twins from and to their buffers. Throws
// std::bad_alloc, and InputError where the GPU fails.
class Arena {
 public:
  // `limit`: bytes in all; beyond it memory counts as exhausted. For sizes that come from a file.
  explicit Arena(megamla_device device = MEGAMLA_DEVICE_CPU, int64_t limit = INT64_MAX, Pages pages = Pages::kPlain);
  // For the same device and on the same pages; finds the buffers of `outer`, which lives longer, too.
  explicit Arena(Arena* outer);

  // Aligned to at least 256 bytes and exactly this long, so that a sanitizer sees the first byte beyond.
  void* bytes(int64_t count, uint8_t fill = 0);
  // Of the device alone, never copied and not filled: for workspaces. Host memory where there is no GPU.
  void* device_bytes(int64_t count);
  megamla_tensor tensor(megamla_dtype dtype, std::initializer_list<int64_t> shape, uint8_t fill = 0);
  // The device of the ops that the buffers are for, as in megamla_tensor.
  int32_t cuda_device() const { return cuda_device_; }

  // Where the device finds these bytes; the pointer itself where there is no GPU.
  void* on_device(void* pointer);
  // Views that say they are in GPU memory come to say where.
  void place(megamla_tensor& view);
  void place(megamla_kv_cache& view);
  void upload() const;
  // Waits for the ops called so far.
  void download() const;
  // The same for `count` bytes of one buffer; nothing where there is no GPU.
  void upload(const void* begin, int64_t count);
  void download(void* begin, int64_t count);
  // Of memory that is pinned (gpu::Pinned): on the stream, without waiting.
  void enqueue_upload(const void* begin, int64_t count);

 private:
  struct FreeHost {
    void operator()(char* p) const;
  };
  struct FreeDevice {
    void operator()(char* p) const;
  };
  struct Buffer {
    std::unique_ptr<char, FreeHost> host;
    std::unique_ptr<char, FreeDevice> twin;
    int64_t bytes = 0;
  };

  int32_t cuda_device_ = -1;
  Pages pages_ = Pages::kPlain;
  int64_t left_ = INT64_MAX;
  Arena* outer_ = nullptr;
  std::map<const char*, Buffer> buffers_;  // by host address
  std::vector<std::unique_ptr<char, FreeDevice>> device_only_;
};

}  // namespace megamla::app
