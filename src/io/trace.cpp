#include "io/trace.hpp"

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

namespace megamla::io {
namespace {

using nlohmann::json;

constexpr int64_t kMaxLength = int64_t{1} << 31;

Status read_field(const std::string& where, const json& line, const char* name, int64_t limit, int64_t* out) {
  const auto field = line.find(name);
  if (field == line.end()) return io_error("{}: {}: expected an integer, found nothing", where, name);
  if (!field->is_number_integer() || field->get<int64_t>() < 0 || field->get<int64_t>() > limit) {
    return io_error("{}: {}: expected an integer in [0, {}], found {}", where, name, limit,
                    field->dump().substr(0, 40));
  }
  *out = field->get<int64_t>();
  return {};
}

Status parse_line(const std::string& where, const std::string& text, TraceRequest* request) {
  const json line = json::parse(text, nullptr, false);
  if (line.is_discarded() || !line.is_object())
    return io_error("{}: expected a JSON object, found '{}'", where, text.substr(0, 40));
  MEGAMLA_RETURN_IF_ERROR(read_field(where, line, "timestamp", int64_t{1} << 52, &request->timestamp_ms));
  MEGAMLA_RETURN_IF_ERROR(read_field(where, line, "input_length", kMaxLength, &request->input_length));
  MEGAMLA_RETURN_IF_ERROR(read_field(where, line, "output_length", kMaxLength, &request->output_length));
  const auto ids = line.find("hash_ids");
  if (ids == line.end() || !ids->is_array())
    return io_error("{}: hash_ids: expected a list, found something else", where);
  const int64_t blocks = (request->input_length + kTraceBlockTokens - 1) / kTraceBlockTokens;
  if (static_cast<int64_t>(ids->size()) > blocks) {
    return io_error("{}: hash_ids: expected at most {} entries for {} tokens, found {}", where, blocks,
                    request->input_length, ids->size());
  }
  for (const json& id : *ids) {
    if (!id.is_number_integer())
      return io_error("{}: hash_ids: expected integers, found {}", where, id.dump().substr(0, 40));
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
  const std::string temporary = path + ".part";
  std::ofstream file(temporary);
  for (const TraceRequest& r : requests) {
    file << nlohmann::ordered_json{{"timestamp", r.timestamp_ms},
                                   {"input_length", r.input_length},
                                   {"output_length", r.output_length},
                                   {"hash_ids", r.hash_ids}}
                .dump()
         << '\n';
  }
  file.close();
  std::error_code error;
  if (file) std::filesystem::rename(temporary, path, error);
  if (!file || error) return io_error("{}: cannot be written", path);
  return {};
}

}  // namespace megamla::io
