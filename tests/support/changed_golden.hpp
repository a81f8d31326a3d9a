// A golden file with something in it changed, written to the test's own folder.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "io/safetensors.hpp"

namespace megamla::test {

struct EditableTensor {
  megamla_dtype dtype;
  std::vector<int64_t> shape;
  std::vector<uint8_t> bytes;

  template <class T>
  T& at(size_t i) {
    return reinterpret_cast<T*>(bytes.data())[i];
  }
  size_t count() const { return bytes.size() / static_cast<size_t>(megamla_dtype_size(dtype)); }
};

struct EditableGolden {
  explicit EditableGolden(const std::string& path) {
    Result<io::SafetensorsFile> file = io::SafetensorsFile::open(path);
    EXPECT_TRUE(file.ok()) << file.status().message();
    metadata = file.value().metadata();
    for (const auto& [name, stored] : file.value().tensors()) {
      tensors[name] = {static_cast<megamla_dtype>(io::stored_dtype(stored.dtype)), stored.shape,
                       std::vector<uint8_t>(stored.data, stored.data + stored.bytes)};
    }
  }

  // The path written to: one file per test program, overwritten each time.
  std::string write() const {
    const std::string path = testing::TempDir() + "megamla_changed_golden_" + std::to_string(getpid()) + ".safetensors";
    std::vector<io::SafetensorsWriter::Declaration> declarations;
    for (const auto& [name, t] : tensors) declarations.push_back({name, t.dtype, t.shape});
    auto writer = io::SafetensorsWriter::create(path, declarations, metadata);
    EXPECT_TRUE(writer.ok()) << writer.status().message();
    for (const auto& [name, t] : tensors) {
      EXPECT_TRUE(writer.value().write(t.bytes.data(), static_cast<int64_t>(t.bytes.size())).ok());
    }
    EXPECT_TRUE(writer.value().finish().ok());
    return path;
  }

  std::map<std::string, EditableTensor> tensors;
  std::map<std::string, std::string> metadata;
};

}  // namespace megamla::test
