// A whole file, mapped read-only.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "core/result.hpp"

namespace megamla::io {

class MappedFile {
 public:
  static Result<MappedFile> open(const std::string& path);
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;
  ~MappedFile();

  std::span<const uint8_t> bytes() const { return {begin_, size_}; }

 private:
  MappedFile(const uint8_t* begin, size_t size) : begin_(begin), size_(size) {}

  const uint8_t* begin_ = nullptr;
  size_t size_ = 0;
};

}  // namespace megamla::io
