// The fuzzer's bytes as a file that a reader can open.
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <span>
#include <string>

namespace megamla::fuzz {

// In memory. Readers map files by pages: where a file's size is a multiple of kPage the first byte behind it is a
// fault.
class InputFile {
 public:
  static constexpr size_t kPage = 4096;

  explicit InputFile(std::span<const uint8_t> bytes) : file_(memfd_create("fuzz", 0)) {
    if (file_ < 0) std::abort();
    for (size_t written = 0; written < bytes.size();) {
      const ssize_t more = ::write(file_, bytes.data() + written, bytes.size() - written);
      if (more <= 0) std::abort();
      written += static_cast<size_t>(more);
    }
  }
  ~InputFile() { ::close(file_); }
  InputFile(const InputFile&) = delete;
  InputFile& operator=(const InputFile&) = delete;

  std::string path() const { return "/proc/self/fd/" + std::to_string(file_); }

 private:
  int file_;
};

}  // namespace megamla::fuzz
