// The file readers: safetensors, config.json, traces, golden cases. A file is read or refused with one line; what has
// been read can be used: every tensor's bytes are there, a config or trace reads back from its own text.
#include <cstring>
#include <numeric>
#include <vector>

#include "check/check_file.hpp"
#include "fuzz/finding.hpp"
#include "fuzz/input_file.hpp"
#include "fuzz/targets.hpp"
#include "io/model_config.hpp"
#include "io/safetensors.hpp"
#include "io/trace.hpp"

namespace megamla::fuzz {
namespace {

using Bytes = std::vector<uint8_t>;

void check_refusal(const std::string& path, const Status& status) {
  const std::string& message = status.message();
  require(status.code() == MEGAMLA_IO_ERROR, "refused with code {}", static_cast<int>(status.code()));
  require(message.rfind(path, 0) == 0, "'{}' does not begin with the file's name", message);
  for (const char c : message) require(static_cast<unsigned char>(c) >= 0x20, "'{}' is not one line", message);
}

int64_t element_count(const std::vector<int64_t>& shape) {
  return std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>());
}

// True if the file was accepted.
bool read_safetensors(const Bytes& bytes) {
  const InputFile input(bytes);
  const Result<io::SafetensorsFile> file = io::SafetensorsFile::open(input.path());
  if (!file.ok()) {
    check_refusal(input.path(), file.status());
    return false;
  }
  uint64_t sum = 0;
  for (const auto& [name, stored] : file.value().tensors()) {
    sum = std::accumulate(stored.data, stored.data + stored.bytes, sum);
    const Result<megamla_tensor> view = file.value().view(name);
    if (!view.ok()) {
      check_refusal(input.path(), view.status());
      continue;
    }
    const megamla_tensor& t = view.value();
    const int64_t size = megamla_dtype_size(static_cast<megamla_dtype>(t.dtype));
    require(element_count(stored.shape) * size == stored.bytes, "'{}' has {} bytes", name, stored.bytes);
  }
  return sum != UINT64_MAX;
}

// The same file with a header padded by spaces, as the format allows, so that its last byte ends a page. Empty where
// there is no header.
Bytes padded_to_page(std::span<const uint8_t> file) {
  uint64_t header = 0;
  if (file.size() < sizeof(header)) return {};
  std::memcpy(&header, file.data(), sizeof(header));
  if (header > file.size() - sizeof(header)) return {};
  const size_t spaces = (InputFile::kPage - file.size() % InputFile::kPage) % InputFile::kPage;
  const auto header_end = file.begin() + static_cast<std::ptrdiff_t>(sizeof(header) + header);
  Bytes padded(file.begin(), header_end);
  padded.insert(padded.end(), spaces, ' ');
  padded.insert(padded.end(), header_end, file.end());
  header += spaces;
  std::memcpy(padded.data(), &header, sizeof(header));
  return padded;
}

}  // namespace

void safetensors(std::span<const uint8_t> file) {
  const bool accepted = read_safetensors({file.begin(), file.end()});
  const Bytes padded = padded_to_page(file);
  if (padded.empty()) return;
  require(read_safetensors(padded) == accepted, "spaces behind the header change whether a file is accepted");
}

void config(std::span<const uint8_t> file) {
  const size_t spaces = (InputFile::kPage - file.size() % InputFile::kPage) % InputFile::kPage;
  Bytes padded(file.begin(), file.end());
  padded.insert(padded.end(), spaces, ' ');
  const InputFile input(padded);
  const Result<io::ModelConfig> read = io::read_model_config(input.path());
  if (!read.ok()) return check_refusal(input.path(), read.status());
  const std::string text = io::model_config_text(read.value());
  const InputFile written({reinterpret_cast<const uint8_t*>(text.data()), text.size()});
  const Result<io::ModelConfig> again = io::read_model_config(written.path());
  require(again.ok(), "a config that was read does not read back: {}", again.status().message());
  require(io::model_config_text(again.value()) == text, "a config changes when it is written and read");
  const auto layers = static_cast<int64_t>(read.value().compress_ratios.size());
  for (int64_t layer = -1; layer <= layers; ++layer) {
    const int64_t source = read.value().kv_source_of(layer);
    require(source <= layer && source < layers, "layer {} has kv source {}", layer, source);
  }
}

void trace(std::span<const uint8_t> file) {
  const InputFile input(file);
  const Result<std::vector<io::TraceRequest>> read = io::read_trace(input.path());
  if (!read.ok()) return check_refusal(input.path(), read.status());
  for (const io::TraceRequest& r : read.value()) {
    require(r.input_length >= 0 && r.output_length >= 0 && r.timestamp_ms >= 0, "a negative number was accepted");
    const auto blocks = static_cast<size_t>((r.input_length + io::kTraceBlockTokens - 1) / io::kTraceBlockTokens);
    require(r.hash_ids.size() <= blocks, "{} ids for {} blocks", r.hash_ids.size(), blocks);
  }
  const Result<std::vector<io::TraceRequest>> first = io::read_trace(input.path(), 1);
  require(first.ok() && first.value().size() == std::min<size_t>(read.value().size(), 1), "a limit of 1 is not kept");
}

void golden(std::span<const uint8_t> file) {
  const InputFile input(file);
  megamla_exec exec = MEGAMLA_EXEC_INIT;
  exec.num_threads = 2;
  for (const megamla_device device : {MEGAMLA_DEVICE_CPU, MEGAMLA_DEVICE_REFERENCE}) {
    exec.device = device;
    const check::Report report = check::check_file(input.path(), exec);
    require(report.verdict.passed() || !report.verdict.failure().empty(), "a case fails without saying why");
  }
}

}  // namespace megamla::fuzz
