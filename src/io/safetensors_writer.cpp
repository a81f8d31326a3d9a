#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "io/safetensors.hpp"

namespace megamla::io {

struct SafetensorsWriter::File {
  std::string path;
  std::string temporary;
  std::FILE* stream = nullptr;
  int64_t expected = 0;  // data bytes
  int64_t written = 0;

  ~File() {
    if (stream == nullptr) return;
    std::fclose(stream);
    std::error_code ignored;
    std::filesystem::remove(temporary, ignored);  // an unfinished file never stays
  }
};

SafetensorsWriter::SafetensorsWriter(std::unique_ptr<File> file) : file_(std::move(file)) {}
SafetensorsWriter::~SafetensorsWriter() = default;

Result<SafetensorsWriter> SafetensorsWriter::create(const std::string& path, const std::vector<Declaration>& tensors,
                                                    const std::map<std::string, std::string>& metadata) {
  auto file = std::make_unique<File>();
  file->path = path;
  file->temporary = path + ".part";
  nlohmann::ordered_json header = nlohmann::ordered_json::object();
  if (!metadata.empty()) header["__metadata__"] = metadata;
  for (const Declaration& tensor : tensors) {
    int64_t bytes = megamla_dtype_size(tensor.dtype);
    for (const int64_t extent : tensor.shape) bytes *= extent;
    if (header.contains(tensor.name)) return io_error("{}: {}: expected once, found twice", path, tensor.name);
    header[tensor.name] = {{"dtype", megamla_dtype_name(tensor.dtype)},
                           {"shape", tensor.shape},
                           {"data_offsets", {file->expected, file->expected + bytes}}};
    file->expected += bytes;
  }
  std::string text = header.dump();
  text.append((16 - (text.size() + sizeof(uint64_t)) % 16) % 16, ' ');  // data begins at a multiple of 16
  const uint64_t size = text.size();
  file->stream = std::fopen(file->temporary.c_str(), "wb");
  if (file->stream == nullptr) return io_error("{}: cannot be written: {}", file->temporary, std::strerror(errno));
  if (std::fwrite(&size, sizeof(size), 1, file->stream) != 1 ||
      std::fwrite(text.data(), 1, text.size(), file->stream) != text.size()) {
    return io_error("{}: cannot be written: {}", file->temporary, std::strerror(errno));
  }
  return SafetensorsWriter(std::move(file));
}

Status SafetensorsWriter::write(const void* data, int64_t bytes) {
  if (bytes < 0 || bytes > file_->expected - file_->written) {
    return io_error("{}: expected at most {} more bytes, got {}", file_->path, file_->expected - file_->written, bytes);
  }
  if (std::fwrite(data, 1, static_cast<size_t>(bytes), file_->stream) != static_cast<size_t>(bytes)) {
    return io_error("{}: cannot be written: {}", file_->temporary, std::strerror(errno));
  }
  file_->written += bytes;
  return {};
}

Status SafetensorsWriter::finish() {
  if (file_->written != file_->expected) {
    return io_error("{}: expected {} data bytes, got {}", file_->path, file_->expected, file_->written);
  }
  const bool closed = std::fclose(file_->stream) == 0;
  file_->stream = nullptr;
  std::error_code error;
  if (closed) std::filesystem::rename(file_->temporary, file_->path, error);
  if (!closed || error) {
    std::error_code ignored;
    std::filesystem::remove(file_->temporary, ignored);
    return io_error("{}: cannot be written: {}", file_->path, closed ? error.message() : std::strerror(errno));
  }
  return {};
}

}  // namespace megamla::io
