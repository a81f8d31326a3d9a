// safetensors: an 8-byte little-endian header length, a JSON header, raw little-endian data. Every number of the header
// is checked against the file before a tensor is handed out; gaps between tensors are allowed, overlaps are not.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "core/result.hpp"
#include "io/mapped_file.hpp"

namespace megamla::io {

struct StoredTensor {
  std::string dtype;  // as in the file: "BF16", "F8_E4M3", ...
  std::vector<int64_t> shape;
  const uint8_t* data = nullptr;  // aligned to nothing
  int64_t bytes = 0;
};

class SafetensorsFile {
 public:
  // Errors: "FILE: WHAT: expected ..., found ...". A tensor of a dtype unknown to this reader is listed, with its size
  // unchecked, and refused by `view`.
  static Result<SafetensorsFile> open(const std::string& path);

  const std::string& path() const { return path_; }
  const std::map<std::string, StoredTensor>& tensors() const { return tensors_; }
  const std::map<std::string, std::string>& metadata() const { return metadata_; }
  const StoredTensor* find(const std::string& name) const;
  // A view of a tensor whose dtype the library knows and that has at most MEGAMLA_MAX_DIMS dimensions (a scalar becomes
  // [1]).
  Result<megamla_tensor> view(const std::string& name) const;

 private:
  SafetensorsFile(std::string path, MappedFile file) : path_(std::move(path)), file_(std::move(file)) {}
  Status parse();

  std::string path_;
  MappedFile file_;
  std::map<std::string, StoredTensor> tensors_;
  std::map<std::string, std::string> metadata_;
};

// Bytes of an element of a safetensors dtype; 0 if the name is unknown.
int64_t stored_dtype_size(const std::string& dtype);
// -1 if the library has no such dtype.
int stored_dtype(const std::string& dtype);

// Writes a file: declare every tensor, then write their data in that order. The file appears under its name only when
// `finish` succeeds.
class SafetensorsWriter {
 public:
  struct Declaration {
    std::string name;
    megamla_dtype dtype;
    std::vector<int64_t> shape;
  };
  static Result<SafetensorsWriter> create(const std::string& path, const std::vector<Declaration>& tensors,
                                          const std::map<std::string, std::string>& metadata = {});
  SafetensorsWriter(SafetensorsWriter&&) = default;
  SafetensorsWriter& operator=(SafetensorsWriter&&) = default;
  ~SafetensorsWriter();

  Status write(const void* data, int64_t bytes);  // the next bytes, in the order of the declarations
  Status finish();

 private:
  struct File;
  explicit SafetensorsWriter(std::unique_ptr<File> file);
  std::unique_ptr<File> file_;
};

}  // namespace megamla::io
