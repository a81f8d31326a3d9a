#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <limits>
#include <nlohmann/json.hpp>

#include "io/json_file.hpp"
#include "io/safetensors.hpp"

namespace megamla::io {

struct SafetensorsWriter::File {
  std::string path;
  std::string temporary;
  std::FILE* stream = nullptr;
  int64_t expected = 0;  // data bytes
  int64_t written = 0;
  bool made = false;  // the temporary file is there

  ~File() {
    if (stream != nullptr) std::fclose(stream);
    if (!made) return;
    std::error_code ignored;
    std::filesystem::remove(temporary, ignored);  // an unfinished file never stays
  }
};

SafetensorsWriter::SafetensorsWriter(std::unique_ptr<File> file) : file_(std::move(file)) {}
SafetensorsWriter::~SafetensorsWriter() = default;

namespace {

// The bytes of a declared tensor; they and all before them lie below 2^62.
Status declared_bytes(const std::string& path, const SafetensorsWriter::Declaration& tensor, int64_t before,
                      int64_t* bytes) {
  constexpr int64_t kMax = std::numeric_limits<int64_t>::max() / 2;
  *bytes = megamla_dtype_size(tensor.dtype);
  if (*bytes == 0) {
    return io_error("{}: {}: dtype: expected one of megamla_dtype, got {}", path, brief(tensor.name),
                    static_cast<int>(tensor.dtype));
  }
  for (const int64_t extent : tensor.shape) {
    if (extent < 0 || (extent > 0 && *bytes > (kMax - before) / extent)) {
      return io_error("{}: {}: shape: expected non-negative dimensions and less than 2^62 bytes, got [{}]", path,
                      brief(tensor.name), fmt::join(tensor.shape, ", "));
    }
    *bytes *= extent;
  }
  return {};
}

// The header's text, and how many data bytes follow it.
Result<std::string> header_text(const std::string& path, const std::vector<SafetensorsWriter::Declaration>& tensors,
                                const std::map<std::string, std::string>& metadata, int64_t* data_bytes) {
  using nlohmann::json;
  std::string text = "{";
  std::map<std::string, int> names;
  const auto add = [&](const std::string& name, const json& value) {
    if (text.size() > 1) text += ',';
    text += json(name).dump() + ':' + value.dump();
  };
  try {
    if (!metadata.empty()) add("__metadata__", metadata);
    names["__metadata__"] = 1;
    for (const SafetensorsWriter::Declaration& tensor : tensors) {
      if (names[tensor.name]++ != 0)
        return io_error("{}: {}: expected a name of its own, got it twice", path, brief(tensor.name));
      int64_t bytes = 0;
      MEGAMLA_RETURN_IF_ERROR(declared_bytes(path, tensor, *data_bytes, &bytes));
      add(tensor.name, {{"dtype", megamla_dtype_name(tensor.dtype)},
                        {"shape", tensor.shape},
                        {"data_offsets", {*data_bytes, *data_bytes + bytes}}});
      *data_bytes += bytes;
    }
  } catch (const json::exception& error) {
    return io_error("{}: names and metadata: expected UTF-8, got {}", path, brief(error.what()));
  }
  text += '}';
  text.append((16 - (text.size() + sizeof(uint64_t)) % 16) % 16, ' ');  // data begins at a multiple of 16
  return text;
}

}  // namespace

Result<SafetensorsWriter> SafetensorsWriter::create(const std::string& path, const std::vector<Declaration>& tensors,
                                                    const std::map<std::string, std::string>& metadata) {
  auto file = std::make_unique<File>();
  file->path = path;
  file->temporary = temporary_name(path);
  const Result<std::string> header = header_text(path, tensors, metadata, &file->expected);
  if (!header.ok()) return header.status();
  const std::string& text = header.value();
  const uint64_t size = text.size();
  file->stream = std::fopen(file->temporary.c_str(), "wb");
  if (file->stream == nullptr) return io_error("{}: cannot be written: {}", path, std::strerror(errno));
  file->made = true;
  if (std::fwrite(&size, sizeof(size), 1, file->stream) != 1 ||
      std::fwrite(text.data(), 1, text.size(), file->stream) != text.size()) {
    return io_error("{}: cannot be written: {}", path, std::strerror(errno));
  }
  return SafetensorsWriter(std::move(file));
}

Status SafetensorsWriter::write(const void* data, int64_t bytes) {
  if (bytes < 0 || bytes > file_->expected - file_->written) {
    return io_error("{}: expected at most {} more bytes, got {}", file_->path, file_->expected - file_->written, bytes);
  }
  if (bytes == 0) return {};  // an empty tensor may have no memory
  if (std::fwrite(data, 1, static_cast<size_t>(bytes), file_->stream) != static_cast<size_t>(bytes)) {
    return io_error("{}: cannot be written: {}", file_->path, std::strerror(errno));
  }
  file_->written += bytes;
  return {};
}

Status SafetensorsWriter::finish() {
  if (file_->stream == nullptr) return io_error("{}: expected one call of finish, got another", file_->path);
  if (file_->written != file_->expected) {
    return io_error("{}: expected {} data bytes, got {}", file_->path, file_->expected, file_->written);
  }
  const bool closed = std::fclose(file_->stream) == 0;
  std::error_code error(errno, std::generic_category());
  file_->stream = nullptr;
  if (closed) std::filesystem::rename(file_->temporary, file_->path, error);
  if (!closed || error) return io_error("{}: cannot be written: {}", file_->path, error.message());
  file_->made = false;
  return {};
}

}  // namespace megamla::io
