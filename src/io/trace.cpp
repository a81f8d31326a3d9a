#include "io/trace.hpp"

#include <filesystem>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>

#include "io/json_file.hpp"

namespace megamla::io {
namespace {

using nlohmann::json;

constexpr int64_t kMaxLength = int64_t{1} << 31;

Status read_field(const std::string& where, const json& line, const char* name, int64_t limit, int64_t* out) {
  const auto field = line.find(name);
  if (field == line.end()) return io_error("{}: {}: expected an integer, found nothing", where, name);
  if (!field->is_number_unsigned() || field->get<uint64_t>() > static_cast<uint64_t>(limit)) {
    return io_error("{}: {}: expected an integer in [0, {}], found {}", where, name, limit, describe(*field));
  }
  *out = field->get<int64_t>();
  return {};
}

Status parse_line(const std::string& where, const std::string& text, TraceRequest* request) {
  const Result<json> parsed = parse_json_object(where, text);
  if (!parsed.ok()) return parsed.status();
  const json& line = parsed.value();
  MEGAMLA_RETURN_IF_ERROR(read_field(where, line, "timestamp", int64_t{1} << 52, &request->timestamp_ms));
  MEGAMLA_RETURN_IF_ERROR(read_field(where, line, "input_length", kMaxLength, &request->input_length));
  MEGAMLA_RETURN_IF_ERROR(read_field(where, line, "output_length", kMaxLength, &request->output_length));
  const auto ids = line.find("hash_ids");
  if (ids == line.end() || !ids->is_array()) {
    return io_error("{}: hash_ids: expected a list of integers, found {}", where,
                    ids == line.end() ? "nothing" : describe(*ids));
  }
  const int64_t blocks = (request->input_length + kTraceBlockTokens - 1) / kTraceBlockTokens;
  if (static_cast<int64_t>(ids->size()) > blocks) {
    return io_error("{}: hash_ids: expected at most {} entries for {} tokens, found {}", where, blocks,
                    request->input_length, ids->size());
  }
  for (const json& id : *ids) {
    if (!id.is_number_unsigned() || id.get<uint64_t>() > static_cast<uint64_t>(std::numeric_limits<int64_t>::max()))
      return io_error("{}: hash_ids: expected integers in [0, 2^63), found {}", where, describe(id));
    request->hash_ids.push_back(id.get<int64_t>());
  }
  return {};
}

}  // namespace

Result<std::vector<TraceRequest>> read_trace(const std::string& path, int64_t limit) {
  std::ifstream file(path);
  if (!file || std::filesystem::is_directory(path)) return io_error("{}: cannot be opened as a trace", path);
  std::vector<TraceRequest> requests;
  std::string line;
  for (int64_t number = 1; (limit < 0 || static_cast<int64_t>(requests.size()) < limit) && std::getline(file, line);
       ++number) {
    if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
    TraceRequest request;
    if (Status status = parse_line(fmt::format("{}:{}", path, number), line, &request); !status.ok()) return status;
    requests.push_back(std::move(request));
  }
  if (file.bad()) return io_error("{}: cannot be read", path);
  return requests;
}

Status write_trace(const std::vector<TraceRequest>& requests, const std::string& path) {
  std::string text;
  for (const TraceRequest& r : requests) {
    const nlohmann::ordered_json line = {{"timestamp", r.timestamp_ms},
                                         {"input_length", r.input_length},
                                         {"output_length", r.output_length},
                                         {"hash_ids", r.hash_ids}};
    text += line.dump() + '\n';
  }
  return write_text_file(path, text);
}

}  // namespace megamla::io
